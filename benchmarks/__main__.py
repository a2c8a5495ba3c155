"""``python -m benchmarks drain``: run a scenario on the embedded server or on ``--dsn``, print medians and spread."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import psycopg

from benchmarks.drain import drain
from benchmarks.results import document, summarise
from pgsched.ops import embedded
from pgsched.store.schema import migrate

SETTINGS = ("synchronous_commit", "fsync", "shared_buffers", "max_wal_size")


@click.command()
@click.argument("scenario", type=click.Choice(["drain"]))
@click.option("--dsn", help="An empty database of a server to measure; default: an embedded server of its own.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures here.")
@click.option("--repeat", default=3, show_default=True, type=click.IntRange(1))
@click.option("--tasks", default=20_000, show_default=True, type=click.IntRange(100))
@click.option("--processes", default=2, show_default=True, type=click.IntRange(1))
@click.option("--quick", is_flag=True, help="Once, with few tasks: only to see that it runs.")
def main(
    scenario: str, dsn: str | None, json_file: Path | None, repeat: int, tasks: int, processes: int, quick: bool
) -> None:
    """Measure SCENARIO."""
    if quick:
        repeat, tasks = 1, 2_000
    with _server(dsn) as server:
        migrate(server)
        with psycopg.connect(server, autocommit=True) as connection:
            version = str(connection.info.server_version)
            settings = {name: str(_show(connection, name)) for name in SETTINGS}
        runs = [drain(server, tasks=tasks, processes=processes) for _ in range(repeat)]
    results = summarise(runs)
    for figure in results:
        click.echo(
            f"{figure['name']:24} {figure['value']:12,.3f} {figure['unit']:4} "
            f"({figure['min']:,.3f} to {figure['max']:,.3f} in {repeat} runs)"
        )
    if json_file is not None:
        json_file.write_text(document(scenario, version, settings, results) + "\n")


@contextmanager
def _server(dsn: str | None) -> Iterator[str]:
    if dsn is not None:
        yield dsn
        return
    with TemporaryDirectory(prefix="pgsched-bench-") as directory:
        Path(directory).chmod(0o711)
        handle = embedded.start(Path(directory) / "server")
        try:
            yield handle.dsn
        finally:
            handle.close()


def _show(connection: psycopg.Connection, name: str) -> object:
    row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
    return row[0] if row else None


if __name__ == "__main__":
    sys.exit(main())
