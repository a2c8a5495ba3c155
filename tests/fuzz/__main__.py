"""``python -m tests.fuzz TARGET [libFuzzer's options]``: lets atheris search for bytes that break a target's promise.

atheris is in no requirement of ours: ``pip install atheris`` where it is wanted. ``-max_total_time=60`` ends after a
minute; a finding ends it at once, with the bytes in a file ``crash-…``.
"""

import importlib
import sys
from typing import Any

atheris: Any = importlib.import_module("atheris")

with atheris.instrument_imports(include=["pgsched", "json"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    """Fuzz until libFuzzer ends the process."""
    program, name, *options = sys.argv
    atheris.Setup([program, *options], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
