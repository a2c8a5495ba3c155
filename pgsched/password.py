"""Calls one function of the user's that returns a password, and hands it over: ``python -m pgsched.password a.b:c 10``.

A process of its own, that ends with the answer: whatever such a function imports, prints, or leaves running, the
supervisor has no part in it. The password goes to standard output; on an error one line goes to standard error.
"""

import importlib
import os
import signal
import sys
from typing import Any, NoReturn


def main() -> NoReturn:
    """Answer, and end at once: threads that the function has started would be waited for."""
    spec, seconds = sys.argv[1:]
    # Whoever asked gives up by then; if it has been killed meanwhile, nobody else ends this.
    signal.alarm(int(seconds) + 1)
    answer = os.dup(1)
    # What is printed by the way is no part of the password.
    os.dup2(2, 1)
    try:
        password = call(spec)
    except BaseException as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        os.write(2, f"\n{line}\n".encode(errors="backslashreplace"))
        os._exit(1)
    os.write(answer, password.encode())
    os._exit(0)


def call(spec: str) -> str:
    """Import ``module:function`` and call it.

    :raises TypeError: it did not return text.
    :raises Exception: whatever it raised.
    """
    module, _, path = spec.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    password = found()
    if not isinstance(password, str):
        raise TypeError(f"it returned {type(password).__name__}, must be str")
    return password


if __name__ == "__main__":
    main()
