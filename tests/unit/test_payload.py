"""Payloads and results as JSON: what passes, what is refused, and that each refusal names the place."""

import enum
import json
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgsched.errors import UsageError
from pgsched.rules.payload import DEPTH_LIMIT, check_payload, to_json

LIMIT = 1 << 20
Point = namedtuple("Point", "x y")


class Colour(enum.StrEnum):
    RED = "red"


class ItemLike:
    """Looks like a numpy scalar, which the unit tests do without."""

    def item(self) -> int:
        return 1


ItemLike.__module__ = "numpy"
ItemLike.__qualname__ = "int64"


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"path": "a.txt", "preset": 6, "deep": {"a": [1, 2.5, None, True, "é\u2028😀"]}},
        {"backslash": "\\u0000 is text here", "control": "\x01\x1f\x7f"},
        {"big": 2**63, "bigger": 10**4000, "float": 1e308},
        OrderedDict(a=1),
        {"": "the empty key is a key"},
    ],
)
def test_payload_reads_back_as_it_was(payload: dict[str, Any]) -> None:
    assert json.loads(check_payload(payload)) == payload


def test_tuples_become_arrays_and_text_enums_become_text() -> None:
    assert check_payload({"t": (1, (2,)), "p": Point(1, 2), "c": Colour.RED}) == '{"t":[1,[2]],"p":[1,2],"c":"red"}'


REFUSED = [
    ({"m": float("nan")}, "x.m is nan"),
    ({"m": [0, {"n": float("inf")}]}, "x.m[1].n is inf"),
    ({"m": 1e400}, "x.m is inf"),
    ({"a": "x\0y"}, "x.a contains a NUL"),
    ({"a": ["b", {"c": "\0" * 1000}]}, "x.a[1].c contains a NUL"),
    ({"a": {"k\0": 1}}, r"x.a has a key that contains a NUL character, which PostgreSQL cannot store: 'k\x00'"),
    ({"a": "\ud800"}, "x.a contains the lone surrogate U+D800"),
    ({"a": b"\xff".decode(errors="surrogateescape")}, "x.a contains the lone surrogate U+DCFF"),
    ({"\udcff": 1}, "x has a key that contains the lone surrogate U+DCFF"),
    ({"a": {1, 2}}, "x.a is a set, which is not JSON"),
    ({"a": b"bytes"}, "x.a is a bytes, which is not JSON"),
    ({"when": datetime(2024, 1, 1)}, "x.when is a datetime.datetime, which is not JSON"),
    ({"d": Decimal("NaN")}, "x.d is a decimal.Decimal, which is not JSON"),
    ({"n": [ItemLike()]}, "x.n[0] is a numpy.int64, which is not JSON; convert it with .item()"),
    ({"n": 10**5000}, "x.n has more than 4300 digits"),
    ({"two words": [object()]}, "x['two words'][0] is an object"),
    ({"a": {(1, 2): 3}}, "x.a has the key (1, 2), which is a tuple; JSON keys must be text"),
    ({"a": nested(DEPTH_LIMIT)}, f"x is nested deeper than {DEPTH_LIMIT} levels"),
    ({"a": nested(100_000)}, f"x is nested deeper than {DEPTH_LIMIT} levels"),
]


@pytest.mark.parametrize(("value", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_f43_f45_f46_refusal_names_the_place(value: dict[str, Any], message: str) -> None:
    """F43 F45 F46: both forms refuse alike."""
    with pytest.raises(UsageError) as payload:
        check_payload(value)
    with pytest.raises(UsageError) as result:
        to_json(value, LIMIT, "x")
    assert str(result.value).startswith(message)
    assert str(payload.value) == str(result.value).replace("x", "payload", 1)
    assert str(payload.value).isprintable()


def test_deepest_allowed_value_passes() -> None:
    assert check_payload({"a": nested(DEPTH_LIMIT - 1)}).count("[") == DEPTH_LIMIT - 1


def test_wide_value_is_not_taken_for_a_deep_one() -> None:
    value = [[i] for i in range(10 * DEPTH_LIMIT)]
    assert json.loads(to_json(value, LIMIT)) == value


def test_value_that_contains_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["me"] = [loop]
    with pytest.raises(UsageError, match="contains itself"):
        check_payload(loop)


@pytest.mark.parametrize("payload", [[1], "text", None, 5, ("a", 1)], ids=repr)
def test_payload_must_be_an_object(payload: object) -> None:
    with pytest.raises(UsageError, match=r"^payload is .*, must be an object"):
        check_payload(payload)


def test_payload_keys_must_be_text_at_every_depth() -> None:
    with pytest.raises(UsageError, match=r"^payload\.a\[0\] has the key 1, which is an int; JSON keys must be text$"):
        check_payload({"a": [{1: 2}]})


def test_result_keys_become_text_as_json_does_it() -> None:
    assert to_json({1: "a", None: "b", False: "c", 1.5: "d"}, LIMIT) == '{"1":"a","null":"b","false":"c","1.5":"d"}'


def test_results_may_be_any_json() -> None:
    assert [to_json(value, LIMIT) for value in (None, 1, "é", [1], True)] == ["null", "1", '"é"', "[1]", "true"]


def test_limit_counts_bytes_of_utf8() -> None:
    assert to_json("éé", 6) == '"éé"'
    with pytest.raises(UsageError, match=r"^result is 6 bytes of JSON, must be at most 5$"):
        to_json("éé", 5)


def test_refusal_survives_a_key_whose_repr_raises() -> None:
    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    with pytest.raises(UsageError, match=r"x has the key <Rude>"):
        to_json({Rude(): 1}, LIMIT, "x")


_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_values = st.recursive(_scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for item in value.values():
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


@settings(max_examples=50)
@given(st.dictionaries(st.text(), _values))
def test_accepted_is_exactly_what_holds_no_nul_and_it_reads_back(payload: dict[str, Any]) -> None:
    # st.text() draws NUL but no surrogates.
    if any("\0" in text for text in texts(payload)):
        with pytest.raises(UsageError, match="NUL"):
            check_payload(payload)
    else:
        assert json.loads(check_payload(payload)) == payload
