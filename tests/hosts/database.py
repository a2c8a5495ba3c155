"""An embedded server that also listens on TCP, in the network namespace that this program is started in.

    python -m tests.hosts.database DIRECTORY

It asks nobody for a password, so it must not be started where others can reach it. It prints its DSN, and stops at the
end of its input. The DSN leads over the Unix socket, which no cut wire touches.
"""

import sys
from pathlib import Path

import psycopg

from pgsched.ops import embedded
from tests.conftest import TEST_SETTINGS

SETTINGS = TEST_SETTINGS | {"listen_addresses": "*", "log_line_prefix": "%m %a %h "}


def main() -> None:
    place = Path(sys.argv[1])
    with embedded.start(place, settings=SETTINGS) as handle:
        rules = place / "data/pg_hba.conf"
        # Written in place, so that its owner stays.
        rules.write_text(f"host all all samenet trust\n{rules.read_text()}")
        with psycopg.connect(handle.dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_reload_conf()")
        print(handle.dsn, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
