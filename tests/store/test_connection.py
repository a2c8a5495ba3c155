"""Connections that fail, hang, lie or change sides; what is logged of it; and that no password ever is."""

import asyncio
import contextlib
import gc
import itertools
import logging
import os
import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from unittest import mock
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsched.errors import DatabaseError, DeadlineError, UsageError
from pgsched.events import FIELDS
from pgsched.store import redaction
from pgsched.store.bounded import BoundedConnection
from pgsched.store.connection import Connection, connect, connect_sync, deadline
from pgsched.store.outage import CALM, Outage
from pgsched.store.redaction import redact
from pgsched.store.store import Store
from tests.proxy import Proxy
from tests.store.desk import Table, complaints, completed, retry, supervisor
from tests.support import Server, database_of, eventually_async

Connect = Callable[..., psycopg.Connection]
PASSWORD = "s3cr3t!pw"


@pytest.fixture
def table(connect: Connect) -> Table:
    return Table(connect())


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets that one test made known shall not help another."""
    monkeypatch.setattr(redaction, "_secrets", set())


@pytest.mark.usefixtures("forgetful")
class TestRedact:
    @pytest.mark.parametrize(
        "text",
        [
            "postgresql://me:s3cr3t%21pw@host:5432/db",
            "postgres://me:s3cr3t!pw@host/db?sslmode=require",
            "postgresql://me:s3cr3t!pw@more@host/db",
            "postgresql://host/db?user=me&password=s3cr3t%21pw&sslmode=require",
            "host=h password=s3cr3t!pw user=me",
            "host=h password = 's3cr3t!pw with space' user=me",
            r"password='s3cr3t!pw with \' quote' user=me",
            "host=h password='s3cr3t!pw never closed",
            "connect(host='h', password='s3cr3t!pw', user='me')",
            "two: postgresql://a:s3cr3t!pw@h/d and postgresql://b:s3cr3t%21pw@h/d",
        ],
    )
    def test_the_shapes_of_a_dsn(self, text: str) -> None:
        shown = redact(text)
        for secret in ("s3cr3t", "with space", "quote'", "more@"):
            assert secret not in shown
        assert "***" in shown

    def test_the_rest_stays(self) -> None:
        shown = redact("postgresql://me:pw1@host:5432/db?sslmode=require host=h password=pw1 user=me")
        assert shown == "postgresql://me:***@host:5432/db?sslmode=require host=h password=*** user=me"
        assert redact("postgresql://me@host/db") == "postgresql://me@host/db"

    async def test_a_password_once_used_is_known_wherever_it_turns_up(self) -> None:
        dsn = f"postgresql://me:{quote(PASSWORD)}@127.0.0.1:1/db"
        with pytest.raises(DatabaseError):
            await connect(dsn, timeout=2)
        assert redact(f"it says {PASSWORD}, or {quote(PASSWORD)}") == "it says ***, or ***"

    def test_pgpassword_is_known(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PGPASSWORD", PASSWORD)
        assert redact(f"authentication with {PASSWORD} failed") == "authentication with *** failed"

    async def test_a_password_that_is_the_users_name_does_not_hide_that(self) -> None:
        with pytest.raises(DatabaseError, match="user postgres"):
            await connect("postgresql://postgres:postgres@127.0.0.1:1/db", timeout=2)


@pytest.mark.usefixtures("forgetful")
class TestConnect:
    @pytest.mark.parametrize(
        "dsn",
        [
            f"postgresql://me:{quote(PASSWORD)}@127.0.0.1:1/db",
            f"host=127.0.0.1 port=1 user=me dbname=db password='{PASSWORD}'",
        ],
    )
    async def test_f82_a_refusal_is_one_line_that_names_all_but_the_password(self, dsn: str) -> None:
        with pytest.raises(DatabaseError) as refused:
            await connect(dsn, timeout=2)
        with pytest.raises(DatabaseError) as refused_too:
            connect_sync(dsn, timeout=2)
        for text in (str(refused.value), str(refused_too.value)):
            assert text.startswith("cannot connect to 127.0.0.1 port 1 (database db, user me): ")
            assert "refused" in text
            assert "\n" not in text
            assert "s3cr3t" not in text
        assert refused.value.__cause__ is None

    @pytest.mark.parametrize(
        "dsn",
        [
            f"host=h password={PASSWORD} more",
            f"host=h password='{PASSWORD}",
            f"postgresql://me:{PASSWORD}@h:port/db",
            f"postgresql://me:{PASSWORD}@h/db?nonsense=1",
            f"postgresql://[me:{PASSWORD}@h/db",
            f"{PASSWORD}",
            f"host=h pasword={PASSWORD}",
        ],
    )
    async def test_f82_a_malformed_dsn(self, dsn: str) -> None:
        for attempt in (lambda: connect_sync(dsn, timeout=2), lambda: asyncio.run(connect(dsn, timeout=2))):
            with pytest.raises((UsageError, DatabaseError)) as wrong:
                await asyncio.to_thread(attempt)
            assert "s3cr3t" not in str(wrong.value)
            assert "\n" not in str(wrong.value)

    @pytest.mark.parametrize(
        ("dsn", "reason"),
        [
            ("nowhere", "a word without ="),
            ("host=h pasword=x", "an option that libpq does not have; password?"),
            ("host=h x=y", "an option that libpq does not have"),
        ],
    )
    def test_what_is_wrong_with_a_dsn_is_said(self, dsn: str, reason: str) -> None:
        with pytest.raises(UsageError, match=rf"^malformed DSN \({re.escape(reason)}\): must be postgresql://"):
            connect_sync(dsn, timeout=2)

    async def test_a_wrong_database_is_named(self, dsn: str) -> None:
        with pytest.raises(DatabaseError, match='database "nowhere_at_all" does not exist'):
            await connect(psycopg.conninfo.make_conninfo(dsn, dbname="nowhere_at_all"), timeout=5)

    async def test_f33_a_silent_server_is_given_up(self, proxy: Proxy) -> None:
        proxy.silence()
        started = time.monotonic()
        with pytest.raises(DatabaseError, match=r"no answer from 127.0.0.1 port \d+ .* within 0.5 s"):
            await connect(proxy.dsn, timeout=0.5)
        assert time.monotonic() - started < 10
        proxy.pass_on()

    async def test_a_silent_first_host_does_not_hide_the_second(self, dsn: str, proxy: Proxy, server: Server) -> None:
        good = psycopg.conninfo.conninfo_to_dict(dsn)
        both = psycopg.conninfo.make_conninfo(
            dsn, host=f"127.0.0.1,{good.get('host') or '127.0.0.1'}", port=f"{proxy.port},{good.get('port') or 5432}"
        )
        proxy.silence()
        connection = await connect(both, timeout=4)
        await connection.close()
        proxy.pass_on()

    async def test_f56_text_is_utf8_whatever_the_server_was_told(self, dsn: str, server: Server) -> None:
        server.sql(f"ALTER DATABASE \"{database_of(dsn)}\" SET client_encoding = 'LATIN1'")
        connection = await connect(dsn, timeout=5)
        assert connection.info.encoding == "utf-8"
        await connection.close()

    async def test_the_kernel_is_told_when_to_give_a_silent_peer_up(self, dsn: str) -> None:
        """That it does, `tests/hosts` shows."""
        async with await connect(f"{dsn} keepalives_count=7", timeout=4.5) as connection:
            told = connection.info.get_parameters()
        names = ("tcp_user_timeout", "keepalives_idle", "keepalives_interval", "keepalives_count")
        assert [told[name] for name in names] == ["4500", "5", "2", "7"]

    async def test_a_name_of_the_users_own_stays(self, dsn: str) -> None:
        connection = await connect(f"{dsn} application_name=mine", timeout=5, application_name="ours")
        assert connection.info.parameter_status("application_name") == "mine"
        await connection.close()


@pytest.fixture
def deaf() -> Iterator[str]:
    """The way to a server that lets everybody connect, and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        port = listener.getsockname()[1]
        yield f"host=127.0.0.1 port={port} dbname=d user=u sslmode=disable gssencmode=disable"


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No garbage is collected: a supervisor collects seldom, and one that is idle hardly ever."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def sockets() -> int:
    """How many this process has open."""
    found = 0
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{entry}").startswith("socket:")
    return found


@pytest.mark.usefixtures("uncollected")
class TestGivenUp:
    """A connection that is given up while it is made leaves no socket."""

    async def test_at_its_deadline(self, deaf: str) -> None:
        store = Store(deaf, db_timeout=0.05)
        before = sockets()
        for _ in range(20):
            with pytest.raises(DatabaseError):
                await store.renew(1, 60)
        assert sockets() == before

    async def test_at_the_drivers_own_limit(self, deaf: str) -> None:
        store = Store(f"{deaf} connect_timeout=2", db_timeout=20)
        before = sockets()
        calls = (store.renew(1, 60), store.reap(1, 1), store.discover(["a"], None))
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(error) for error in errors] == [DatabaseError] * 3
        del errors
        assert sockets() == before

    async def test_when_the_call_is_cancelled(self, deaf: str) -> None:
        store = Store(deaf, db_timeout=20)
        before = sockets()
        for _ in range(20):
            call = asyncio.create_task(store.renew(1, 60))
            await eventually_async(lambda: sockets() > before, "it is under way")
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert sockets() == before

    async def test_when_the_server_hangs_up(self, proxy: Proxy) -> None:
        proxy.reject("57P03", "the database system is starting up")
        store = Store(proxy.dsn, db_timeout=5)
        before = sockets()
        for _ in range(20):
            with pytest.raises(DatabaseError):
                await store.renew(1, 60)
        assert await eventually_async(lambda: sockets() <= before, "the relay has closed its own")
        proxy.pass_on()


def silent_after(proxy: Proxy) -> Callable[..., Awaitable[Connection]]:
    """`connect`, after which the relay falls silent."""

    async def connected(dsn: str, **options: Any) -> Connection:
        connection = await connect(dsn, **options)
        proxy.silence()
        return connection

    return connected


class TestDeadline:
    async def test_a_call_that_fails_just_as_we_are_cancelled_leaves_no_word_behind(self, dsn: str) -> None:
        """As when a process that was stopped goes on: its lease is over, and its connections are gone."""
        heard = complaints()
        gone = asyncio.Event()

        async def fail() -> None:
            await gone.wait()
            raise DatabaseError("the connection is gone")

        connection = await connect(dsn, timeout=5)

        async def call() -> bool:
            try:
                await deadline(connection, fail(), 5)
            except asyncio.CancelledError:
                return True
            return False

        waiting = asyncio.create_task(call())
        for _ in range(5):
            await asyncio.sleep(0)
        gone.set()
        waiting.cancel()
        assert await waiting
        await connection.close()
        # It keeps the traceback, and that the call.
        del waiting
        gc.collect()
        assert heard == []

    async def test_a_silent_server_is_cut_off(self, proxy: Proxy) -> None:
        connection = await connect(proxy.dsn, timeout=5)
        proxy.silence()
        started = time.monotonic()
        with pytest.raises(DeadlineError, match=r"within 0.3 s"):
            await deadline(connection, connection.execute("SELECT 1"), 0.3)
        assert time.monotonic() - started < 10
        assert asyncio.all_tasks() == {asyncio.current_task()}, "nobody waits for it any more"
        await connection.close()
        proxy.pass_on()

    async def test_one_that_is_cancelled_does_not_wait_for_it_either(self, proxy: Proxy) -> None:
        async with supervisor(proxy.dsn, db_timeout=60) as me:
            proxy.silence()
            call = asyncio.create_task(me.store.renew(me.id, 60))
            await asyncio.wait({call}, timeout=0.1)
            started = time.monotonic()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert time.monotonic() - started < 30
            proxy.pass_on()
            assert await me.store.renew(me.id, 60)

    async def test_what_was_cancelled_does_not_keep_its_connection(self, proxy: Proxy, dsn: str) -> None:
        """Or the server would go on with it until the next call comes."""
        async with supervisor(proxy.dsn, db_timeout=60) as me:
            before = proxy.open
            with psycopg.connect(dsn) as other:
                other.execute("SELECT FROM pgsched_supervisors FOR UPDATE")
                call = asyncio.create_task(me.store.renew(me.id, 60))
                await asyncio.wait({call}, timeout=0.1)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                await eventually_async(lambda: proxy.open < before)

    async def test_what_was_refused_does_not_keep_its_connection(self, proxy: Proxy, table: Table) -> None:
        """The next session may have another role, or another search_path."""
        async with supervisor(proxy.dsn) as me:
            before = proxy.open
            table.sql("ALTER TABLE pgsched_supervisors RENAME TO elsewhere")
            with pytest.raises(DatabaseError, match="does not exist"):
                await me.store.renew(me.id, 60)
            await eventually_async(lambda: proxy.open < before)
            table.sql("ALTER TABLE elsewhere RENAME TO pgsched_supervisors")

    async def test_a_session_that_is_not_answered_at_its_beginning_is_cut_off(self, proxy: Proxy) -> None:
        store = Store(proxy.dsn, db_timeout=0.5)
        # The connection is made, and then the server has nothing more to say.
        with mock.patch("pgsched.store.line.connect", silent_after(proxy)), pytest.raises(DeadlineError):
            await store.renew(1, 60)
        proxy.pass_on()
        await store.close()

    async def test_a_silent_server_is_not_waited_for_when_the_schema_is_looked_at(self, proxy: Proxy) -> None:
        async with supervisor(proxy.dsn, db_timeout=2) as me:
            await me.store.check_schema()
            proxy.silence()
            with pytest.raises(DeadlineError):
                await me.store.check_schema()
            proxy.pass_on()

    async def test_a_call_that_does_not_end_with_its_socket_is_left_behind(self, proxy: Proxy) -> None:
        connection = await connect(proxy.dsn, timeout=5)
        ended = asyncio.Event()

        async def deaf() -> None:
            while not ended.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await ended.wait()

        started = time.monotonic()
        with pytest.raises(DeadlineError):
            await deadline(connection, deaf(), 0.1)
        assert time.monotonic() - started < 5
        ended.set()
        await connection.close()

    async def test_calls_on_a_line_are_served_one_at_a_time(self, dsn: str) -> None:
        store = Store(dsn)
        at_work = 0

        async def work(connection: psycopg.AsyncConnection) -> None:
            nonlocal at_work
            at_work += 1
            assert at_work == 1
            await connection.execute("SELECT pg_sleep(0.01)")
            at_work -= 1

        await asyncio.gather(*(store._work.call(work) for _ in range(3)))
        await store.close()

    def test_a_command_does_not_wait_for_a_silent_server(self, proxy: Proxy) -> None:
        connection = connect_sync(proxy.dsn, kind=BoundedConnection)
        assert isinstance(connection, BoundedConnection)
        connection.deadline = 0.3
        proxy.silence()
        started = time.monotonic()
        with pytest.raises(DeadlineError, match=r"0\.3 s"):
            connection.execute("SELECT 1")
        assert time.monotonic() - started < 5
        connection.close()
        proxy.pass_on()

    async def test_the_next_call_has_a_new_connection(self, proxy: Proxy) -> None:
        async with supervisor(proxy.dsn, db_timeout=2) as me:
            proxy.silence()
            with pytest.raises(DeadlineError):
                await me.store.renew(me.id, 60)
            proxy.pass_on()
            assert await me.store.renew(me.id, 60)

    async def test_the_server_gives_up_on_a_statement_that_nobody_waits_for(
        self, dsn: str, server: Server, table: Table, connect: Connect
    ) -> None:
        holder = connect(autocommit=False)
        holder.execute("LOCK TABLE pgsched_supervisors")
        store = Store(dsn, db_timeout=0.5)
        with pytest.raises(DatabaseError):
            await store.renew(1, 60)
        await eventually_async(lambda: not server.waits_for_lock(dsn), "the backend stops waiting")
        holder.rollback()
        await store.close()

    async def test_a_statement_that_the_server_gives_up_costs_no_connection(
        self, dsn: str, server: Server, connect: Connect
    ) -> None:
        server.sql(f"ALTER DATABASE \"{database_of(dsn)}\" SET statement_timeout = '300ms'")
        holder = connect(autocommit=False)
        holder.execute("LOCK TABLE pgsched_supervisors")
        store = Store(dsn)
        session = await store._lease.run(("backend", ()))
        with pytest.raises(DeadlineError, match="statement timeout"):
            await store.renew(1, 60)
        assert store.outage.count == 1
        holder.rollback()
        assert await store.renew(1, 60) is None
        assert await store._lease.run(("backend", ())) == session
        await store.close()

    @pytest.mark.parametrize(
        ("limit", "told"), [("1234ms", "1234ms"), ("8s", "8s"), ("5min", "9s"), ("2d", "9s"), ("0", "9s")]
    )
    async def test_a_lower_limit_that_the_role_has_stays(self, limit: str, told: str, dsn: str, server: Server) -> None:
        """Under a higher one, those whose client has left would wait on, more with each attempt, until no session is
        left."""
        server.sql(f"ALTER DATABASE \"{database_of(dsn)}\" SET statement_timeout = '{limit}'")
        store = Store(dsn)
        await store.open()

        async def found(connection: psycopg.AsyncConnection) -> str:
            cursor = await connection.execute("SHOW statement_timeout")
            return str((await cursor.fetchone() or ("",))[0])

        assert await store._work.call(found) == told
        await store.close()

    async def test_a_claim_that_takes_too_long_is_tried_with_fewer(
        self, dsn: str, server: Server, table: Table, connect: Connect
    ) -> None:
        server.sql(f"ALTER DATABASE \"{database_of(dsn)}\" SET statement_timeout = '300ms'")
        table.insert(20)
        holder = connect(autocommit=False)
        async with supervisor(dsn) as me:
            holder.execute("LOCK TABLE scheduled_tasks")
            for _ in range(2):
                with pytest.raises(DeadlineError):
                    await me.claim(total=16)
            holder.rollback()
            assert [len(await me.claim(total=16)) for _ in range(2)] == [4, 5], "and with more again, by and by"

    async def test_f49_no_call_leaves_a_transaction_open(self, dsn: str, server: Server, table: Table) -> None:
        table.insert(2)
        async with supervisor(dsn) as me:
            claims = await me.claim()
            await me.settle(*map(completed, claims))
            await me.store.depth()
            await me.store.discover(["a"], None)
            assert {backend.state for backend in server.backends(dsn) if "pgsched" in backend.application_name} == {
                "idle"
            }


class TestLoss:
    async def test_f37_terminated_sessions_are_replaced(self, dsn: str, server: Server, table: Table) -> None:
        table.insert(3)
        async with supervisor(dsn) as me:
            claims = await me.claim()
            server.terminate(dsn, "pgsched %")
            with pytest.raises(DatabaseError):
                await me.settle(*map(completed, claims))
            assert await me.settle(*map(completed, claims), resent=True) == [True] * 3
            with pytest.raises(DatabaseError):
                await me.store.renew(me.id, 60)
            assert await me.store.renew(me.id, 60)

    async def test_a_session_that_was_not_told_its_settings_serves_nobody(
        self, dsn: str, server: Server, table: Table
    ) -> None:
        table.sql("CREATE SEQUENCE times")
        table.sql(
            "CREATE FUNCTION set_config(text, text, boolean) RETURNS text LANGUAGE plpgsql AS $$ BEGIN"
            " IF nextval('times') = 1 THEN RAISE EXCEPTION 'conflict' USING ERRCODE = '40001'; END IF;"
            " RETURN pg_catalog.set_config($1, $2, $3); END $$"
        )
        server.sql(f'ALTER DATABASE "{database_of(dsn)}" SET search_path = public, pg_catalog')

        async def setting(connection: psycopg.AsyncConnection) -> list[tuple[object, ...]]:
            return await (await connection.execute("SELECT current_setting('enable_seqscan')")).fetchall()

        store = Store(dsn)
        assert await store.renew(1, 60) is None
        assert await store._lease.call(setting) == [("off",)]
        await store.close()

    async def test_f36_no_connection_is_made_to_a_read_only_server(self, dsn: str, server: Server) -> None:
        name = database_of(dsn)
        server.sql(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        store = Store(dsn)
        with pytest.raises(DatabaseError, match="session is read-only"):
            await store.open()
        server.sql(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        await store.open()
        await store.close()

    async def test_f36_a_connection_whose_server_turns_read_only_is_dropped(self, dsn: str, server: Server) -> None:
        """The server says so by itself, with whatever it answers next."""
        store = Store(dsn)
        await store.open()
        [before] = server.backends(dsn)
        await store._work.call(lambda connection: connection.execute("SET default_transaction_read_only = on"))
        await store.discover(["a"], None)

        def replaced() -> bool:
            """The server may not have noticed yet that the first one is closed."""
            pids = [found.pid for found in server.backends(dsn)]
            return len(pids) == 1 and pids != [before.pid]

        await eventually_async(replaced, "another connection, and that alone")
        await store.close()

    async def test_a_claim_whose_reply_was_lost_comes_back_as_strays(self, proxy: Proxy, table: Table) -> None:
        table.insert(3)
        async with supervisor(proxy.dsn) as me:
            proxy.swallow()
            with pytest.raises(DatabaseError):
                await me.claim()
            assert table.statuses() == {"processing": 3}
            assert await me.store.strays(me.id, []) == []
            assert table.statuses() == {"queued": 3}
            assert {claim.fence for claim in await me.claim()} == {3}

    async def test_a_settle_that_is_delivered_late_does_not_touch_the_next_claim(
        self, dsn: str, proxy: Proxy, server: Server, table: Table
    ) -> None:
        [task_id] = table.insert()
        async with supervisor(proxy.dsn, db_timeout=2) as me:
            [claim] = await me.claim()
            proxy.hold("pgsched work")
            with pytest.raises(DeadlineError):
                await me.settle(retry(claim, 0.0))
            assert await me.settle(retry(claim, 0.0), resent=True) == [True]
            [next_claim] = await me.claim()
            assert len([each for each in server.backends(dsn) if each.application_name == "pgsched work"]) == 2
            proxy.pass_on()
            await eventually_async(
                lambda: len([b for b in server.backends(dsn) if b.application_name == "pgsched work"]) == 1,
                "the server has done what came late, and left",
            )
            row = table.row(task_id)
            assert (row.status, row.fence, row.retry_count) == ("processing", next_claim.fence, 1)
            assert len(table.failures(task_id)) == 1
            assert await me.settle(completed(next_claim)) == [True]

    async def test_f39_a_pooled_store_leaves_nothing_in_the_session(self, dsn: str, table: Table) -> None:
        table.insert(20)

        async def session(connection: psycopg.AsyncConnection) -> list[tuple[object, ...]]:
            cursor = await connection.execute(
                "SELECT (SELECT count(*) FROM pg_prepared_statements), current_setting('enable_seqscan'),"
                " current_setting('default_transaction_isolation') = reset_val"
                " FROM pg_settings WHERE name = 'default_transaction_isolation'"
            )
            return await cursor.fetchall()

        async with supervisor(dsn, pooled=True) as me, supervisor(dsn) as other:
            for _ in range(10):
                await me.settle(*map(completed, await me.claim(total=1)))
                await other.settle(*map(completed, await other.claim(total=1)))
            assert await me.store._work.call(session) == [(0, "on", True)]
            assert await other.store._work.call(session) != [(0, "on", True)]


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.msg for record in caplog.records if hasattr(record, FIELDS)]


class TestOutage:
    async def test_a_right_that_is_taken_away_is_no_outage(
        self, dsn: str, server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        name = f"pgsched_test_{os.getpid()}"
        server.sql(f"CREATE ROLE {name}", dsn=dsn)
        try:
            server.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}", dsn=dsn)
            async with supervisor(make_conninfo(dsn, options=f"-c role={name}")) as me:
                server.sql(f"REVOKE ALL ON scheduled_tasks_live FROM {name}", dsn=dsn)
                for _ in range(2):
                    with pytest.raises(DatabaseError, match="permission denied for table scheduled_tasks_live"):
                        await me.store.discover(["a"], None)
                    assert await me.store.renew(me.id, 60)
                server.sql(f"GRANT ALL ON scheduled_tasks_live TO {name}", dsn=dsn)
                assert await me.store.discover(["a"], None) == []
                assert me.store.outage.count == 0
        finally:
            server.sql(f"DROP OWNED BY {name}; DROP ROLE {name}", dsn=dsn)
        assert [(record.msg, record.levelname) for record in caplog.records] == [("statement_refused", "ERROR")]

    async def test_f86_an_outage_is_told_once_and_its_end_too(
        self, proxy: Proxy, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with supervisor(proxy.dsn) as me:
            proxy.refuse()
            for _ in range(50):
                with pytest.raises(DatabaseError):
                    await me.store.renew(me.id, 60)
                with pytest.raises(DatabaseError):
                    await me.store.depth()
            proxy.pass_on()
            assert await me.store.renew(me.id, 60)
            await me.store.depth()
        assert [record.msg for record in caplog.records] == ["database_lost", "database_back"]
        fields = getattr(caplog.records[0], FIELDS)
        assert "server closed the connection" in fields["error"]
        assert "\n" not in fields["error"]
        assert me.store.outage.count == 1

    async def test_f86_a_server_that_refuses_in_words(self, proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
        async with supervisor(proxy.dsn) as me:
            proxy.cut()
            for sqlstate, words in (("57P03", "the database system is starting up"), ("53300", "too many clients")):
                proxy.reject(sqlstate, words)
                for _ in range(3):
                    with pytest.raises(DatabaseError):
                        await me.store.renew(me.id, 60)
            proxy.pass_on()
            assert await me.store.renew(me.id, 60)
        assert events(caplog) == ["database_lost", "database_back"]

    def test_the_longer_it_lasts_the_less_is_said(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: now)
        outage = Outage()
        told = []
        for second in range(4000):
            now = float(second)
            before = len(caplog.records)
            outage.failed(DatabaseError("away"))
            if len(caplog.records) > before:
                told.append(second)
        assert told[:5] == [0, 10, 30, 70, 150]
        assert max(after - before for before, after in itertools.pairwise(told)) <= 300
        assert len(told) < 20
        outage.succeeded()
        outage.succeeded()
        assert caplog.records[-1].msg == "database_back"
        assert getattr(caplog.records[-1], FIELDS)["seconds"] == 3999
        assert caplog.records[-1].levelno == logging.WARNING

    def test_f36_a_server_that_comes_and_goes_is_one_outage(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: now)
        outage = Outage()
        for _ in range(90):
            outage.failed(DatabaseError("away"))
            now += 0.05
            outage.succeeded(now)
            now += 0.05
        assert events(caplog) == ["database_lost", "database_back"]
        now += CALM
        outage.failed(DatabaseError("away"))
        assert events(caplog) == ["database_lost", "database_back", "database_lost"]
        assert outage.count == 2

    def test_an_answer_to_what_was_asked_before_the_failure_is_no_return(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        outage = Outage()
        began = time.monotonic()
        outage.failed(DatabaseError("away"))
        outage.succeeded(began)
        assert events(caplog) == ["database_lost"]

    async def test_no_driver_noise(self, dsn: str, server: Server, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING)
        async with supervisor(dsn) as me:
            for _ in range(3):
                server.terminate(dsn, "pgsched %")
                with pytest.raises(DatabaseError):
                    await me.store.renew(me.id, 60)
                assert await me.store.renew(me.id, 60)
        assert {record.name for record in caplog.records} == {"pgsched"}


def test_this_process_has_no_open_connections_left(dsn: str) -> None:
    before = len(os.listdir("/proc/self/fd"))

    async def work() -> None:
        for _ in range(5):
            async with supervisor(dsn) as me:
                await me.store.depth()

    asyncio.run(work())
    assert len(os.listdir("/proc/self/fd")) <= before
