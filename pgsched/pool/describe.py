"""Turns what user code raised into text that can be stored and printed. Runs in workers and the forkserver.

Errors cross between processes as text only: an exception's class may not exist in the parent, its constructor may
want other arguments, its ``__str__`` may raise. Text is cleaned of what PostgreSQL refuses: NUL and lone surrogates.
"""

import importlib
import re
import traceback
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Final

ERROR_LIMIT: Final = 1000
"""Characters of an error's one line."""
TRACEBACK_LIMIT: Final = 16 * 1024
"""Characters of a traceback; cut in the middle."""

_PASSED_BY: Final = ("<frozen ", importlib.__file__, f"{Path(__file__).parents[1]}/")
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


def clean(text: str) -> str:
    """The text with NUL and lone surrogates replaced by U+FFFD."""
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def error_line(error: BaseException) -> str:
    """Class and message on one line: ``ValueError: no such preset``. Never raises."""
    kind = type(error)
    try:
        plain = kind.__module__ in ("builtins", "__main__")
        name = kind.__qualname__ if plain else f"{kind.__module__}.{kind.__qualname__}"
    except BaseException:
        name = "exception of a class that has no name"
    try:
        message = " ".join(str(error).split())
    except BaseException as failure:
        message = f"<its text cannot be had: {type(failure).__name__}>"
    line = clean(f"{name}: {message}" if message else name)
    return line if len(line) <= ERROR_LIMIT else f"{line[: ERROR_LIMIT - 3]}..."


def raised_at(error: BaseException) -> str:
    """File and line of the innermost frame that is neither importlib's nor ours; nothing where there is none."""
    trace = traceback.walk_tb(error.__traceback__)
    places = [(frame.f_code.co_filename, line) for frame, line in trace]
    return next((f"{file}:{line}" for file, line in reversed(places) if not file.startswith(_PASSED_BY)), "")


def traceback_text(error: BaseException, skip: Collection[str]) -> str | None:
    """The traceback without the frames that called the user's code. Never raises.

    :param skip: files whose leading frames are left out.
    """
    try:
        trace = _after(error.__traceback__, skip)
        text = clean("".join(traceback.format_exception(type(error), error, trace)))
    except BaseException:
        # A __repr__, __str__ or __cause__ of the user's that raises.
        return None
    if len(text) > TRACEBACK_LIMIT:
        half = TRACEBACK_LIMIT // 2
        text = f"{text[:half]}\n  [{len(text) - 2 * half} characters left out]\n{text[-half:]}"
    return text


def _after(trace: TracebackType | None, skip: Collection[str]) -> TracebackType | None:
    first = trace
    while trace is not None and trace.tb_frame.f_code.co_filename in skip:
        trace = trace.tb_next
    # An error in the skipped files themselves has no other frames to show.
    return trace or first
