"""The settings of ``pgsched run``."""

import dataclasses

import pytest

from pgsched.config import Settings, option_name
from pgsched.errors import ExitCode, UsageError
from pgsched.quantities import Address

APP = "examples.archive:app"


def test_defaults() -> None:
    settings = Settings.parse(APP, {"processes": None, "lease": None})
    assert settings.processes >= 1
    assert (settings.lease, settings.namespace, str(settings.metrics_address)) == (15.0, 1337, "127.0.0.1:9808")


def test_every_field_has_a_reader_that_takes_its_default() -> None:
    defaults = dataclasses.asdict(Settings(app=APP, processes=3, metrics_address=None)) | {"metrics_address": "none"}
    del defaults["app"]
    assert Settings.parse(APP, defaults) == Settings(app=APP, processes=3, metrics_address=None)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("processes", "4", 4),
        ("queues", "mail, images,mail", ("mail", "images")),
        ("queues", ["mail"], ("mail",)),
        ("db_timeout", "500ms", 0.5),
        ("poll_only", "yes", True),
        ("pooled", False, False),
        ("drain_timeout", "0", 0.0),
        ("boot_timeout", "10m", 600.0),
        ("max_tasks_per_worker", "none", None),
        ("max_memory_per_worker", "1GiB", 1 << 30),
        ("start_method", "spawn", "spawn"),
        ("namespace", "-2147483648", -(2**31)),
        ("metrics_address", "[::1]:0", Address("::1", 0)),
        ("metrics_address", "none", None),
        ("log_format", "json", "json"),
        ("prune_older_than", "7d", 604800.0),
        ("partitions", "0-3", (0, 1, 2, 3)),
        ("partitions", "5-7, 2,0", (0, 2, 5, 6, 7)),
    ],
)
def test_options(name: str, text: object, value: object) -> None:
    assert getattr(Settings.parse(APP, {name: text}), name) == value


WRONG: dict[str, list[str]] = {
    "processes": ["0", "-1", "1.5", "abc", "", "100000"],
    "queues": ["", "a,,b", "x" * 65],
    "dsn": ["", "  "],
    "db_timeout": ["0", "-1", "abc", "", "1h"],
    "poll_interval": ["0", "-1", "abc", "", "2h", "nan"],
    "poll_only": ["", "maybe"],
    "pooled": ["2"],
    "lease": ["0", "-1", "1.9", "abc", "", "121", "5m"],
    "reap_interval": ["0", "-1", "abc", "", "2h"],
    "drain_timeout": ["-1", "abc", "", "8d", "inf"],
    "max_tasks_per_worker": ["0", "-1", "1.5", "abc", ""],
    "max_memory_per_worker": ["0", "-1", "1MiB", "abc", ""],
    "boot_timeout": ["0", "-1", "abc", "", "2h"],
    "start_method": ["fork", "", "SPAWN"],
    "namespace": ["2147483648", "1.5", "abc", ""],
    "metrics_address": ["", "9808", "127.0.0.1:70000", "127.0.0.1:-1", "127.0.0.1:abc"],
    "log_format": ["xml", ""],
    "prune_older_than": ["-1", "abc", ""],
    "partitions": ["", "a", "-1", "3-1", "1-", "0,,1", "256", "1.5", "0-9999999999"],
}


def test_every_option_has_wrong_values() -> None:
    assert {field.name for field in dataclasses.fields(Settings)} - {"app"} == set(WRONG)


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in WRONG.items() for text in texts])
def test_f83_wrong_values_are_refused_in_one_line_that_names_option_value_and_range(name: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Settings.parse(APP, {name: text})
    message = str(caught.value)
    assert caught.value.exit_code is ExitCode.USAGE
    assert message.startswith(option_name(name))
    assert text[:40] in message
    assert "must" in message
    assert "\n" not in message


def test_a_value_from_the_environment_is_named_after_its_variable() -> None:
    with pytest.raises(UsageError, match=r"^PGSCHED_PROCESSES '0': must be a whole number from 1 to 1024$"):
        Settings.parse(APP, {"processes": "0"}, {"processes": "PGSCHED_PROCESSES"})


@pytest.mark.parametrize(
    "app", ["", "archive", "archive:", ":app", "a b:app", "archive:app()", "./archive.py:app", "a..b:c"]
)
def test_app_is_module_and_attribute(app: str) -> None:
    with pytest.raises(UsageError, match=r"^APP '.*': must be module:attribute, like tasks:app$"):
        Settings.parse(app, {})


def test_app_may_be_nested() -> None:
    assert Settings.parse("a.b.c:d.e", {}).app == "a.b.c:d.e"
