"""``python -m pgsched``: the same program as the ``pgsched`` command."""

from pgsched.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
