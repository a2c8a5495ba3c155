"""What `pgsched check` says of a primary and its standby, on real ones."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from pgsched.store import check
from pgsched.store.check import Problem
from tests.faults.replicas import Pair
from tests.support import eventually


@pytest.fixture
def pair(place_for_servers: Path) -> Iterator[Pair]:
    with closing(Pair(place_for_servers)) as found:
        yield found


def found(dsn: str) -> list[Problem]:
    return [problem for problem in check.check(dsn) if "fsync" not in problem.text]


def test_a_standby_and_its_primary(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = pair.old.server, pair.new.server
    assert found(pair.old.dsn) == []
    [problem] = found(pair.new.dsn)
    assert problem == Problem("error", "the server is a standby, which takes no writes", "connect to the primary")

    old.sql("ALTER ROLE postgres SET synchronous_commit = local")
    [problem] = found(pair.old.dsn)
    assert (problem.level, problem.text.split(":")[0]) == ("note", "synchronous_commit is local")
    old.sql("ALTER ROLE postgres RESET synchronous_commit")
    old.sql("ALTER SYSTEM RESET synchronous_standby_names")
    old.sql("SELECT pg_reload_conf()")
    [problem] = eventually(lambda: found(pair.old.dsn))
    assert (problem.level, problem.text.split(":")[0]) == ("note", "no standby is synchronous")
    old.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
    old.sql("SELECT pg_reload_conf()")
    eventually(lambda: found(pair.old.dsn) == [])

    for setting in ("hot_standby_feedback = on", "wal_receiver_status_interval = 1"):
        new.sql(f"ALTER SYSTEM SET {setting}")
    new.sql("SELECT pg_reload_conf()")
    monkeypatch.setattr(check, "OLD_TRANSACTIONS", 3)
    with psycopg.connect(pair.new.dsn) as reader:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class")
        for _ in range(5):
            old.sql("SELECT pg_current_xact_id()")
        [problem] = eventually(lambda: found(pair.old.dsn), "the standby tells what it holds back", timeout=20)
        assert problem.text.startswith("a standby at session ")
        assert "end the query" in problem.cure
    eventually(lambda: found(pair.old.dsn) == [], "it holds nothing back", timeout=20)

    pair.fence()
    [problem] = eventually(lambda: found(pair.old.dsn))
    assert (problem.level, "are read-only" in problem.text) == ("error", True)
