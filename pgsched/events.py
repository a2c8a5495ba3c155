"""Events: how every part of pgsched says that something happened. Names and fields, never prose.

They travel as records of the standard library's logger "pgsched", so that a process without our log set up, and a
test, sees them too. How they look, and which are counted, is decided in ``ops``.
"""

import logging
import sys
from types import TracebackType

LOGGER = logging.getLogger("pgsched")
FIELDS = "pgsched_fields"
"""Attribute of a record that is one of our events: its fields."""

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


def emit(event: str, level: int = logging.INFO, /, **fields: object) -> None:
    """Say that something happened.

    :param event: its name, one of a small closed set: ``worker_ended``.
    :param level: one of :mod:`logging`'s.
    :param fields: in the order in which they are shown. None is left out. ``exc_info`` is as in :mod:`logging`.
    """
    if not LOGGER.isEnabledFor(level):
        return
    exc_info = _exc_info(fields.pop("exc_info", None))
    LOGGER.handle(LOGGER.makeRecord(LOGGER.name, level, "", 0, event, (), exc_info, extra={FIELDS: fields}))


def _exc_info(value: object) -> ExcInfo | None:
    error = sys.exception() if value is True else value
    return (type(error), error, error.__traceback__) if isinstance(error, BaseException) else None
