"""The documented limits: what is said there is so, in figures too, and can be found by its number."""

import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from pgsched import App, UsageError
from pgsched.pool.settings import PoolSettings
from pgsched.rules.payload import PAYLOAD_LIMIT
from tests.faults.test_snapshots import GROWTH
from tests.support import ROOT, Server
from tests.system.conftest import CommandLine
from tests.system.rows import Rows

LIMITS = (ROOT / "docs/limits.md").read_text()


def section(number: str) -> str:
    """The paragraph that speaks of a fault."""
    [first, *_] = [part for part in re.split(r"\n\n|\n\* ", LIMITS) if re.search(rf"\b{number}\b", part)]
    return " ".join(first.split())


def test_readme_leads_to_the_limits() -> None:
    assert "docs/limits.md" in (ROOT / "README.md").read_text()


def test_f07_the_sizes_are_the_ones_that_are_kept() -> None:
    """F07."""
    said = re.search(r"a limit of (\d+) MiB, and a payload one of (\d+) MiB", section("F07") + " " + LIMITS)
    assert said
    sizes = PoolSettings(app="a:b", processes=1).result_limit, PAYLOAD_LIMIT
    assert [int(size) * 1024 * 1024 for size in said.groups()] == list(sizes)


def test_f50_the_growth_is_the_one_that_is_tested() -> None:
    """F50."""
    said = re.search(r"at most ([\d.]+) times as many pages", section("F50"))
    assert said
    assert float(said[1]) == GROWTH


BERLIN = ZoneInfo("Europe/Berlin")


def test_f68_a_due_time_is_one_instant_whatever_the_clocks_do(server: Server, dsn: str, rows: Rows) -> None:
    """F68: there are no rules that a change of the clocks could repeat or skip, and no time without a zone."""
    app = App(dsn)

    @app.task
    def wake() -> None: ...

    twice = datetime(2025, 10, 26, 2, 30, tzinfo=BERLIN)
    ids = [wake.options(run_at=twice.replace(fold=fold)).enqueue() for fold in (0, 1)]
    first, second = (rows.row(task_id).run_at for task_id in ids)
    assert second - first == 3600
    # Of an hour that is left out, the offset before the change counts.
    never = wake.options(run_at=datetime(2025, 3, 30, 2, 30, tzinfo=BERLIN)).enqueue()
    assert rows.row(never).run_at == datetime(2025, 3, 30, 3, 30, tzinfo=BERLIN).timestamp()
    with pytest.raises(UsageError, match="has no time zone"):
        wake.options(run_at=twice.replace(tzinfo=None)).enqueue()
    app.close()
    days = [datetime(2025, 10, 25, 2, tzinfo=BERLIN) + timedelta(days=days) for days in range(3)]
    assert [day.hour for day in days] == [2, 2, 2]
    assert "no cron rules" in section("F68")


def test_f46_a_result_that_is_not_a_number_is_tried_again_as_it_says(pgsched_cli: CommandLine, rows: Rows) -> None:
    """F46: it counts as a failure, and says where."""
    pgsched_cli.module(
        "numbers_",
        "from pgsched import App, Retry\napp = App()\n"
        "@app.task(retry=Retry(base=0.0, cap=0.0))\ndef mean() -> dict[str, float]:\n    return {'m': float('nan')}\n",
    )
    [once] = rows.add("mean", max_retries=0)
    [thrice] = rows.add("mean", max_retries=2)
    pgsched_cli("run", "numbers_:app", "--processes", "1")
    rows.all_ended()
    assert (rows.row(once).status, rows.row(thrice).status) == ("failed", "failed")
    assert (len(rows.failures(once)), len(rows.failures(thrice))) == (1, 3)
    assert rows.row(once).error_log == "result not storable: result.m is nan, a number that JSON does not have"
    assert "tried again while retries are left" in section("F46")


def test_f35_the_shown_command_has_no_shell_before_it() -> None:
    """F35."""
    assert 'CMD ["pgsched", "run", "app.tasks:app"]' in section("F35")
