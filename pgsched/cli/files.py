"""Which files a demo works on: all regular ones of a directory, or Python's standard library.

Only looks; reads no file's content.
"""

import os
import stat
import sysconfig
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from pgsched.errors import UsageError

NOT_STANDARD = ("site-packages", "dist-packages", "__pycache__")
"""Directories inside the standard library's that hold other people's packages, or caches that come and go."""


class Found(NamedTuple):
    """The files below a directory."""

    directory: Path
    files: list[str]
    """Absolute paths, sorted."""
    passed_over: int
    """Files and directories that cannot be read, or have no name in UTF-8."""


def standard_library() -> Found:
    """Python's own library, without the packages that were installed into it, and without its caches.

    :raises UsageError: this Python has none on disk.
    """
    return collect(Path(sysconfig.get_path("stdlib")), leave_out=NOT_STANDARD)


def collect(directory: Path, *, leave_out: Collection[str] = ()) -> Found:
    """Find the regular files of a directory and of everything below it; links are not followed.

    :param leave_out: names of directories that are not entered.
    :raises UsageError: it is no directory, cannot be read, or has no files.
    """
    try:
        os.listdir(directory)
    except OSError as error:
        raise UsageError(f"DIRECTORY {str(directory)!r}: {error.strerror}") from None
    files: list[str] = []
    failed: list[OSError] = []
    passed_over = 0
    for folder, folders, names in os.walk(directory.absolute(), onerror=failed.append):
        folders[:] = [name for name in folders if name not in leave_out]
        for name in names:
            path = os.path.join(folder, name)
            try:
                regular = stat.S_ISREG(os.lstat(path).st_mode)
            except FileNotFoundError:
                continue  # gone since its directory was listed
            except OSError:
                # Its directory may be listed, and no more.
                passed_over += 1
                continue
            if regular and _usable(path):
                files.append(path)
            elif regular:
                passed_over += 1
    passed_over += len(failed)
    if not files:
        reason = f"; {passed_over} cannot be read" if passed_over else ""
        raise UsageError(f"DIRECTORY {str(directory)!r}: has no files{reason}")
    return Found(directory, sorted(files), passed_over)


def _usable(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return os.access(path, os.R_OK)
