"""Takes passwords out of whatever is about to be shown. Pure but for the secrets that it was told to remember."""

import os
import re
from collections import deque
from urllib.parse import quote, unquote

_URL = re.compile(
    r"(?P<before>\b[a-z][a-z0-9+]*://[^\s:/@]*):(?P<secret>[^\s@]*(?:@(?=[^\s@/]*@)[^\s@]*)*)@", re.IGNORECASE
)
_PAIR = re.compile(
    r"(?P<key>\b(?:password|passwd|sslpassword)\s*=\s*)(?P<secret>'(?:\\.|[^'\\])*'?|\"[^\"]*\"?|[^\s&,;)\]]+)",
    re.IGNORECASE,
)
_MASK = "***"
_SHORTEST = 3
"""Shorter secrets would turn up inside ordinary words."""

_secrets: set[str] = set()
_passing: deque[str] = deque(maxlen=32)
"""The last of those that are made by the minute: a supervisor that runs for months would be told of too many."""


def remember(secret: str | None) -> None:
    """From now on, hide this password wherever it turns up, raw or percent-encoded."""
    if secret and len(secret) >= _SHORTEST:
        _secrets.update({secret, unquote(secret), quote(secret), quote(secret, safe="")})


def remember_for_now(secret: str) -> None:
    """The same for one of many; it is forgotten when enough others have come."""
    if len(secret) >= _SHORTEST and secret not in _passing:
        _passing.append(secret)


def redact(text: str) -> str:
    """The text with passwords replaced: in URLs, in ``password=`` pairs, and every one that is known."""
    remember(os.environ.get("PGPASSWORD"))
    for secret in sorted({*_secrets, *_passing}, key=len, reverse=True):
        text = text.replace(secret, _MASK)
    text = _URL.sub(rf"\g<before>:{_MASK}@", text)
    return _PAIR.sub(rf"\g<key>{_MASK}", text)


def one_line(error: BaseException | str) -> str:
    """An error's words without line breaks and passwords."""
    # First the passwords, which may have spaces in them.
    return " ".join(redact(str(error)).split())
