"""The order in which a database is looked for."""

import pytest

from pgsched.dsn import LIBPQ_VARIABLES, PASSWORD_COMMAND, PASSWORD_FROM, resolve
from pgsched.errors import UsageError


def embedded() -> str:
    return "embedded"


ALL = {"PGSCHED_DSN": "from pgsched", "PGHOST": "from libpq"}


def test_order() -> None:
    assert resolve("explicit", ALL, embedded) == "explicit"
    assert resolve(None, ALL, embedded) == "from pgsched"
    assert resolve(None, {"PGHOST": "from libpq"}, embedded) == ""
    assert resolve(None, {}, embedded) == "embedded"


@pytest.mark.parametrize("variable", LIBPQ_VARIABLES)
def test_libpq_variables_describe_a_database(variable: str) -> None:
    assert resolve(None, {variable: "x"}, None) == ""


@pytest.mark.parametrize("variable", ["PGUSER", "PGPASSWORD", "PGAPPNAME"])
def test_a_user_alone_does_not(variable: str) -> None:
    assert resolve(None, {variable: "x"}, embedded) == "embedded"


def test_none_at_all() -> None:
    with pytest.raises(UsageError, match=r"^no database: give --dsn, or set PGSCHED_DSN or "):
        resolve(None, {}, None)


@pytest.mark.parametrize("value", ["", " "])
def test_empty_ones_are_refused_and_not_passed_over(value: str) -> None:
    with pytest.raises(UsageError, match=r"^App\(dsn\) is empty"):
        resolve(value, ALL, embedded, option="App(dsn)")
    with pytest.raises(UsageError, match=r"^PGSCHED_DSN is empty"):
        resolve(None, {"PGSCHED_DSN": value}, embedded)


@pytest.mark.parametrize("variable", [PASSWORD_COMMAND, PASSWORD_FROM])
def test_passwords_are_not_made_for_the_embedded_server(variable: str) -> None:
    with pytest.raises(UsageError, match=r"^no database"):
        resolve(None, {variable: "x"}, embedded)
    assert resolve(None, {variable: "x", "PGHOST": "y"}, embedded) == ""
