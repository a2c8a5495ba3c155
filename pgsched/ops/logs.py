"""Logs: one line an event, as text for people or JSON for programs.

Code emits events with fields (``pgsched.events``) and never prose; only this module formats. What goes out is one line
whatever the fields hold, has its passwords taken out once more, is bounded in length and in number, and never makes
the parent wait. Other libraries' warnings come out in the same form. Runs in the parent.
"""

import codecs
import json
import logging
import math
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Literal, NamedTuple

from pgsched.events import FIELDS, LOGGER
from pgsched.ops.logwriter import LogWriter
from pgsched.ops.throttle import Throttle

LONGEST = 2000
"""Characters of one field's value; what is cut off is counted."""
FRAMES = 8
"""Innermost frames of a traceback that are shown."""

# Imported by its first use, for which there may be no descriptor left when that is what the line is about.
codecs.lookup("unicode_escape")

_PLAIN = re.compile(r"[\w.:/@+,()-]+", re.ASCII)
_RESERVED = ("time", "level", "event")

Format = Literal["text", "json"]
Fields = Mapping[str, object]
Redact = Callable[[str], str]


class Output:
    """The log's way out, from :func:`setup` until :meth:`close`."""

    def __init__(self, handler: "_Handler", writer: LogWriter) -> None:
        self._handler = handler
        self._writer = writer

    def close(self, timeout: float = 1.0) -> None:
        """Write what is queued, but wait no longer than ``timeout`` seconds for a reader."""
        logging.captureWarnings(False)
        logging.getLogger().removeHandler(self._handler)
        self._writer.close(timeout)


def setup(log_format: Format, *, redact: Redact, level: int = logging.INFO, descriptor: int | None = None) -> Output:
    """Send events, and warnings of other libraries, to a descriptor.

    :param redact: takes passwords out of a text; applied to every value, whoever logged it.
    :param level: the lowest that is shown; successes of single tasks are at DEBUG.
    :param descriptor: default standard error; if that was closed before we started, nothing is written, because its
        number may by now belong to a database connection.
    """
    if descriptor is None and sys.stderr is not None:
        descriptor = 2
    formatter = Formatter(log_format, redact)
    handler = _Handler(formatter)
    writer = LogWriter(descriptor, dropped_line=formatter.dropped, overdue=handler.overdue)
    handler.writer = writer
    LOGGER.setLevel(level)
    root = logging.getLogger()
    root.addHandler(handler)
    logging.captureWarnings(True)
    return Output(handler, writer)


class Formatter:
    """Makes one line of an event."""

    def __init__(self, log_format: Format, redact: Redact) -> None:
        self._json = log_format == "json"
        self._redact = redact

    def line(self, when: float, level: int, event: str, fields: Fields) -> bytes:
        """One line with its line feed, in UTF-8 whatever the locale says.

        :param when: Unix time.
        """
        values = {name: self._value(value) for name, value in fields.items() if value is not None}
        level_name = logging.getLevelName(level)
        if self._json:
            moment = datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            record: dict[str, object] = {"time": moment, "level": level_name.lower(), "event": event}
            record |= {f"{name}_" if name in _RESERVED else name: value for name, value in values.items()}
            # ASCII only, so that nothing between here and the reader can spoil it.
            return json.dumps(record).encode("ascii") + b"\n"
        moment = datetime.fromtimestamp(when).astimezone().isoformat(timespec="milliseconds")
        words = [moment, level_name, _quoted(event), *(f"{name}={_shown(value)}" for name, value in values.items())]
        return " ".join(words).encode("utf-8", "backslashreplace") + b"\n"

    def dropped(self, count: int) -> bytes:
        """The line that stands for lines that were dropped because nobody read them."""
        return self.line(time.time(), logging.WARNING, "log_lines_dropped", {"count": count})

    def _value(self, value: object) -> str | int | float:
        if isinstance(value, float):
            return round(value, 6) if math.isfinite(value) else str(value)
        if isinstance(value, int):
            return value
        try:
            text = self._text(value)
        except Exception as error:
            return f"<{type(value).__name__}: {type(error).__name__} when shown>"
        if len(text) > LONGEST:
            return f"{text[:LONGEST]}... ({len(text) - LONGEST} more characters)"
        return text

    def _text(self, value: object) -> str:
        # Passwords go before anything is escaped: an escaped one would not be recognised.
        if isinstance(value, dict | list | tuple):
            return json.dumps(self._nested(value), ensure_ascii=False)
        if isinstance(value, BaseException):
            value = f"{type(value).__name__}: {value}"
        return self._redact(str(value))

    def _nested(self, value: object) -> object:
        if isinstance(value, dict):
            return {self._redact(str(name)): self._nested(part) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return [self._nested(part) for part in value]
        return value if value is None or isinstance(value, int | float) else self._text(value)


class _Kind(NamedTuple):
    event: str
    level: int
    logger: str | None
    template: str | None


class _Handler(logging.Handler):
    """Bounds the number of lines and hands them to the writer."""

    writer: LogWriter

    def __init__(self, formatter: Formatter) -> None:
        super().__init__()
        self._formatter = formatter
        # Each line about a task says something new; of all others the first ones are the news.
        self._tasks: Throttle[_Kind] = Throttle(burst=100, interval=1.0)
        self._others: Throttle[_Kind] = Throttle(burst=10, interval=6.0)

    def emit(self, record: logging.LogRecord) -> None:
        """Hand on one line, or count it as suppressed; never raises, whatever the record holds."""
        try:
            event, fields = _event_of(record)
            suppressed = 0 if record.levelno <= logging.DEBUG else self._admit(record, event)
            if suppressed is not None:
                fields = {**fields, "suppressed": suppressed or None}
                self.writer.put(self._formatter.line(record.created, record.levelno, event, fields))
        except Exception as error:
            fields = {"logger": record.name, "error": type(error).__name__}
            self.writer.put(self._formatter.line(record.created, logging.ERROR, "log_line_failed", fields))

    def overdue(self) -> list[bytes]:
        """Lines that tell what was suppressed of events that have not come again."""
        now = time.monotonic()
        self.acquire()
        try:
            told = self._tasks.overdue(now) + self._others.overdue(now)
        finally:
            self.release()
        return [
            self._formatter.line(time.time(), kind.level, kind.event, {"logger": kind.logger, "suppressed": count})
            for kind, count in told
        ]

    def _admit(self, record: logging.LogRecord, event: str) -> int | None:
        throttle = self._tasks if event.startswith("task_") else self._others
        ours = hasattr(record, FIELDS)
        kind = _Kind(event, record.levelno, None if ours else record.name, None if ours else str(record.msg))
        return throttle.admit(kind, time.monotonic())


def _event_of(record: logging.LogRecord) -> tuple[str, Fields]:
    fields: dict[str, object] | None = getattr(record, FIELDS, None)
    event = record.msg
    if fields is None:
        event, fields = "message", {"logger": record.name, "text": record.getMessage()}
    if record.exc_info and record.exc_info[1] is not None:
        fields = {**fields, **_exception_fields(record.exc_info[1])}
    return event, fields


def _exception_fields(error: BaseException) -> Fields:
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    where = " < ".join(f"{PurePath(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(frames))
    return {"exception": error, "where": where}


def _shown(value: str | int | float) -> str:
    return _quoted(value) if isinstance(value, str) else str(value)


def _quoted(text: str) -> str:
    """As it is if it is one plain word, else in double quotes, with everything escaped that could break the line."""
    if _PLAIN.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    if not escaped.isprintable():
        escaped = "".join(
            char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in escaped
        )
    return f'"{escaped}"'
