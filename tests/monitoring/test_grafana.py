"""The dashboard by Grafana's own schema: it goes through the types that are generated from it, and nothing is lost."""

import json
from collections.abc import Iterator
from enum import Enum
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from tests.monitoring.prometheus import DASHBOARD

pytest.importorskip("grafana_foundation_sdk", reason="grafana-foundation-sdk is not installed (extra: dev)")

from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

FIELDS = ("gridPos", "fillOpacity", "legendFormat", "stacking", "displayMode", "includeAll", "refresh")


def faults(text: str) -> list[str]:
    """Where a dashboard says what Grafana does not know: a field that is not read, a value of another kind."""
    plugins.register_default_plugins()
    written = json.loads(text)
    dashboard = Dashboard.from_json(written)
    read = json.loads(JSONEncoder(sort_keys=True).encode(dashboard))
    # What the editor calls the query of a variable is Grafana's too, but no part of its schema.
    lost = [path for path in _lost(written, read, "") if not path.endswith("].definition")]
    return [*lost, *_strange(dashboard, Dashboard, "")]


def _lost(written: Any, read: Any, path: str) -> Iterator[str]:
    if isinstance(written, dict) and isinstance(read, dict):
        for name, value in written.items():
            yield from _lost(value, read.get(name), f"{path}.{name}")
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        for index, (one, other) in enumerate(zip(written, read, strict=True)):
            yield from _lost(one, other, f"{path}[{index}]")
    elif written != read:
        yield path


def _strange(value: Any, kind: Any, path: str) -> Iterator[str]:
    """Where a value is not of its kind, which is a class, or one of what ``typing`` makes."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if all(list(_strange(value, part, path)) for part in parts):
            yield path
    elif origin is Literal:
        if value not in parts:
            yield path
    elif origin is list:
        if not isinstance(value, list):
            yield path
        else:
            for index, item in enumerate(value):
                yield from _strange(item, parts[0], f"{path}[{index}]")
    elif origin is dict:
        if not isinstance(value, dict):
            yield path
    elif isinstance(kind, type) and issubclass(kind, Enum):
        if value not in [member.value for member in kind]:
            yield path
    elif not isinstance(value, (int, float) if kind is float else kind):
        yield path
    elif type(value).__module__.startswith("grafana_foundation_sdk.models"):
        for name, hint in get_type_hints(type(value)).items():
            yield from _strange(getattr(value, name), hint, f"{path}.{name}")


def test_grafana_knows_each_field() -> None:
    assert faults(DASHBOARD.read_text()) == []


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_grafana_does_not_know_is_found_out(name: str) -> None:
    assert any(path.endswith(f"{name}s") for path in faults(DASHBOARD.read_text().replace(f'"{name}"', f'"{name}s"')))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('"h": 8', '"h": "8"'),
        ('"mode": "normal"', '"mode": "piled"'),
        ('"sort": "desc"', '"sort": "down"'),
        ('"range": true', '"range": 1.5'),
        ('"title": "pgsched"', '"title": 1'),
    ],
)
def test_a_value_of_another_kind_is_found_out(right: str, wrong: str) -> None:
    text = DASHBOARD.read_text()
    assert right in text
    assert faults(text.replace(right, wrong)) != []
