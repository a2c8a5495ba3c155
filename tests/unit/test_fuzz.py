"""Whatever is made up for a reader of others' words, its promise holds; see tests/fuzz/targets.py."""

import contextlib
import io
import json
import os
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pgsched.cli.commands import pgsched
from pgsched.cli.main import main
from pgsched.store import redaction
from pgsched.store.connection import _parameters
from pgsched.store.redaction import one_line
from tests.fuzz import targets

some = settings(max_examples=150, deadline=None)

_numbers = st.from_regex(r"[+-]?[0-9]{0,30}\.?[0-9]{0,5} ?[A-Za-z]{0,4}", fullmatch=True)
_words = st.sampled_from(["host", "port", "password", "user", "sslpassword", "options", "'", '"', "=", " ", "\\", "\0"])
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(st.characters()), inner, max_size=5),
    max_leaves=10,
)


@some
@given(st.binary() | _numbers.map(str.encode) | st.from_regex(r"\[?[0-9a-z:.]*\]?:[0-9]{0,6}").map(str.encode))
def test_quantities(data: bytes) -> None:
    targets.quantities(data)


@pytest.mark.parametrize("size", [4000, 4999])
def test_a_number_too_long_to_be_shown(size: int) -> None:
    targets.quantities(b"1" * size)


def _mangled(text: str) -> st.SearchStrategy[bytes]:
    """Also with something inserted, and cut short."""
    places = st.integers(0, len(text))
    cut = places.map(lambda end: text[:end])
    inserted = st.builds(lambda at, more: text[:at] + more + text[at:], places, st.sampled_from(' \t\n\0"\\{}[]\ufeff'))
    return (st.just(text) | cut | inserted).map(lambda made: made.encode(errors="surrogatepass"))


@some
@given(st.binary() | _json.map(json.dumps).flatmap(_mangled) | _json.map(lambda it: json.dumps({"a": it}).encode()))
def test_payloads(data: bytes) -> None:
    targets.payload(data)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 100_000, "1" * 5000, '{"a": ' + "1" * 5000 + "}", '{"a": 1}' + " " * 1000, "\ufeff{}"],
)
def test_payloads_at_the_limits(text: str) -> None:
    targets.payload(text.encode())


@some
@example(b"host=here\0 password=there")
@given(
    st.binary()
    | st.lists(_words | st.text(max_size=3), max_size=12).map(lambda parts: "".join(parts).encode(errors="ignore"))
    | st.text().map(lambda rest: f"postgresql://{rest}".encode(errors="ignore"))
)
def test_connection_strings(data: bytes) -> None:
    targets.dsn(data)


@some
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0⟦⟧"), min_size=3, max_size=30))
def test_no_password_is_shown_that_was_seen_in_a_connection_string(secret: str) -> None:
    quoted = secret.replace("\\", "\\\\").replace("'", "\\'")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(redaction, "_secrets", set())
        _parameters(f"host=somewhere user=somebody dbname=something password='{quoted}'", 1.0, "fuzz")
        assert one_line(f"⟦{secret}⟧") == "⟦***⟧"


_lines = st.sampled_from(
    ["GET /metrics HTTP/1.1", "HEAD /healthz HTTP/1.0", "Accept: a/b", "Host: x", "", " x", "a:\0"]
)


@some
@given(st.binary() | st.lists(_lines | st.text(max_size=8), max_size=8).map(lambda it: "\r\n".join(it).encode()))
def test_requests(data: bytes) -> None:
    targets.request(data)
    targets.request(data + b"\r\n\r\n")


_options = sorted({name for command in pgsched.commands.values() for each in command.params for name in each.opts})
_arguments = (
    st.sampled_from([name for name in _options if name.startswith("-") and name != "--dsn"])
    | st.text(st.characters(), max_size=12)
    | _numbers
    | st.sampled_from(["tasks:app", "-", "--", "-1", '{"a": 1}', "4711", "7d", "--json=1", "-x", "@file", "\udcff"])
)


def _called(arguments: list[str]) -> tuple[int, str]:
    """Exit code and standard error of a command that can reach no database."""
    streams: list[Any] = [io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace") for _ in range(2)]
    with pytest.MonkeyPatch.context() as patched:
        for name in [name for name in os.environ if name.startswith("PG")]:
            patched.delenv(name)
        patched.setenv("PGSCHED_NO_EMBEDDED", "1")
        patched.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"a": 1}')))
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            code = main(arguments)
    streams[1].flush()
    return code, streams[1].buffer.getvalue().decode()


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([*pgsched.commands, "", "nonsense"]), st.lists(_arguments, max_size=6))
def test_any_command_line_that_cannot_be_done_ends_in_one_line(command: str, arguments: list[str]) -> None:
    code, said = _called([command, *arguments])
    helped = {"--help", "-h", "--version"} & set(arguments)
    assert code == 2 or (code == 0 and helped), said
    assert "Traceback" not in said
    lines = [line for line in said.splitlines() if not line.startswith("pgsched: warning: ")]
    assert len(lines) == (code == 2), said


@some
@given(st.text(st.characters(), max_size=40).filter(lambda text: "=" not in text and "://" not in text))
def test_any_dsn_that_is_none_is_refused_and_not_quoted(dsn: str) -> None:
    code, said = _called(["status", f"--dsn={dsn}"])
    # A lone word is no database: libpq takes it for a key without a value.
    assert code == 2, said
    assert said.count("\n") == 1
