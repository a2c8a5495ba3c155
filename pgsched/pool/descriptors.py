"""The descriptors that the parent may have open, and for how many workers they suffice. Runs in the parent."""

import resource
from typing import Final

_WORKER: Final = 6
"""What a worker costs the parent."""
_REST: Final = 40
"""Connections, the log, metrics and their scrapers, the forkserver, and another one while it is reloaded."""
_ENOUGH: Final = 8192
"""For as many workers as there may be, and little enough for a program that tries to close every one of them."""


def allow() -> None:
    """Take what nobody minds: a session often gives 1024 at first, and leave to have more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _ENOUGH if hard == resource.RLIM_INFINITY else min(_ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def room() -> int:
    """For how many workers there are enough, at least 1."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, ((_ENOUGH if soft == resource.RLIM_INFINITY else soft) - _REST) // _WORKER)
