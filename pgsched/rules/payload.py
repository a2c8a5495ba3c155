"""Turns a payload or a result into the JSON text that PostgreSQL stores, or says in one line what cannot be stored.

Pure. Used where a task is enqueued and, for results, in the worker. A value that is fine costs one run of the C encoder
and a scan of its text; only when that shows trouble is the value walked, to name the place. ``jsonb`` is stricter
than Python's ``json``: no NaN, no infinity, no NUL, no lone surrogate, and a bounded depth.
"""

import json
import math
from collections.abc import Iterator
from typing import Final

from pgsched.errors import UsageError

PAYLOAD_LIMIT: Final = 16 * 1024 * 1024
"""Bytes of JSON text."""
DEPTH_LIMIT: Final = 200
"""Objects and arrays inside one another: far below where PostgreSQL's and Python's parsers run out of stack."""
_DIGITS_LIMIT: Final = 4300
"""Python refuses to convert longer whole numbers to or from text."""

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
# Characters below a space are escaped by the encoder, so a NUL shows as its escape; so does a backslash before "u0000".
_NUL_ESCAPE: Final = "\\u0000"


def check_payload(payload: object, limit: int = PAYLOAD_LIMIT) -> str:
    """The payload as JSON text.

    Tuples become arrays. Keys must be text at every depth: JSON would turn 1 into "1", and the task would be called
    with something else than it was enqueued with.

    :param payload: the keyword arguments, a ``dict``.
    :param limit: bytes of UTF-8.
    :raises UsageError: it is no object, not JSON, cannot be stored, or too large; names the key path.
    """
    if not isinstance(payload, dict):
        raise UsageError(f'payload is {_kind(payload)}, must be an object of keyword arguments such as {{"path": "a"}}')
    return _encode(payload, limit, "payload", strict_keys=True)


def to_json(value: object, limit: int, name: str = "result") -> str:
    """Any value as JSON text; keys that are numbers, booleans or None become text, as ``json.dumps`` does it.

    :param limit: bytes of UTF-8.
    :param name: what to call the value in the error.
    :raises UsageError: it is not JSON, cannot be stored, or too large; names the key path.
    """
    return _encode(value, limit, name, strict_keys=False)


def _encode(value: object, limit: int, name: str, *, strict_keys: bool) -> str:
    try:
        text = _encoder.encode(value)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        _refuse_first_fault(value, name, strict_keys)
        raise UsageError(f"{name} cannot be stored as JSON: {error}") from error
    if strict_keys or _NUL_ESCAPE in text or text.count("[") + text.count("{") > DEPTH_LIMIT:
        _refuse_first_fault(value, name, strict_keys)
    if size > limit:
        raise UsageError(f"{name} is {size:,} bytes of JSON, must be at most {limit:,}")
    return text


def _refuse_first_fault(value: object, name: str, strict_keys: bool) -> None:
    """Walk the value, parents first, and raise for the first thing that cannot be stored."""
    # A stack of iterators and not recursion: the value may be deeper than Python's stack.
    path: list[str] = []
    stack: list[Iterator[tuple[str, object]]] = [iter([(name, value)])]
    while stack:
        for step, item in stack[-1]:
            where = "".join([*path, step])
            if fault := _fault(item):
                raise UsageError(f"{where} {fault}")
            if isinstance(item, dict | list | tuple):
                if len(stack) > DEPTH_LIMIT:
                    raise UsageError(f"{name} is nested deeper than {DEPTH_LIMIT} levels, or contains itself")
                path.append(step)
                stack.append(_members(item, where, strict_keys))
                break
        else:
            stack.pop()
            if path:
                path.pop()


def _members(
    container: dict[object, object] | list[object] | tuple[object, ...], where: str, strict_keys: bool
) -> Iterator[tuple[str, object]]:
    """What the container holds, each with the step that leads there."""
    if not isinstance(container, dict):
        for index, item in enumerate(container):
            yield f"[{index}]", item
        return
    for key, item in container.items():
        if isinstance(key, str):
            if fault := _text_fault(key):
                raise UsageError(f"{where} has a key that {fault}: {_short(key)}")
        elif strict_keys or not (key is None or isinstance(key, int | float)):
            raise UsageError(f"{where} has the key {_short(key)}, which is {_kind(key)}; JSON keys must be text")
        elif fault := _fault(key):
            raise UsageError(f"{where} has a key that {fault}")
        yield (f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{_short(key)}]"), item


def _fault(item: object) -> str:
    """What is wrong with this one value, apart from what it contains; empty when nothing is."""
    match item:
        case None | bool() | dict() | list() | tuple():
            return ""
        case str():
            return _text_fault(item)
        case int():
            # log10(2) digits a bit; exact enough to stay below a limit that is itself far from PostgreSQL's.
            too_long = item.bit_length() * math.log10(2) >= _DIGITS_LIMIT - 1
            return f"has more than {_DIGITS_LIMIT} digits" if too_long else ""
        case float():
            return "" if math.isfinite(item) else f"is {float(item)}, a number that JSON does not have"
    hint = "; convert it with .item()" if type(item).__module__ == "numpy" and hasattr(item, "item") else ""
    return f"is {_kind(item)}, which is not JSON{hint}"


def _text_fault(text: str) -> str:
    if "\0" in text:
        return "contains a NUL character, which PostgreSQL cannot store"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"contains the lone surrogate U+{ord(text[error.start]):04X}, which has no UTF-8 form"
    return ""


def _kind(item: object) -> str:
    kind = type(item)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return "None" if item is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _short(item: object) -> str:
    """The repr as printable text on one line, cut to a readable length; a repr that raises is replaced."""
    try:
        text = ascii(item)
    except Exception:
        text = f"<{type(item).__name__}>"
    return text if len(text) <= 60 else f"{text[:57]}..."
