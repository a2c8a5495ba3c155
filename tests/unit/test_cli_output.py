"""How results look: alignment, units, escapes."""

from datetime import UTC, datetime

import pytest

from pgsched.cli import output


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.3504, "350ms"),
        (1, "1s"),
        (59.99, "59s"),
        (60, "1m00s"),
        (185, "3m05s"),
        (7500, "2h05m"),
        (356400, "4d03h"),
        (-90, "-1m30s"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float, text: str) -> None:
    assert output.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 30, "1.0 GiB"), (1 << 50, "1024.0 TiB")]
)
def test_a_size_has_the_largest_unit_that_leaves_one(count: int, text: str) -> None:
    assert output.size(count) == text


def test_a_table_puts_numbers_to_the_right_and_leaves_no_blanks_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["NAME", "TASKS", "NOTE"], [["a", 1, "x"], ["long name", 12345, None]])
    assert capsys.readouterr().out.splitlines() == [
        "NAME        TASKS  NOTE",
        "a               1  x",
        "long name  12,345  -",
    ]


def test_a_table_without_rows_is_its_headers(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["ID", "TYPE"], [])
    assert capsys.readouterr().out == "ID  TYPE\n"


def test_text_from_a_row_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["ERROR"], [["red \x1b[31m\nnext\x9b\u202e"]])
    assert capsys.readouterr().out.splitlines()[1] == r"red \x1b[31m\nnext\x9b\u202e"


def test_a_field_of_several_lines_is_indented(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_fields([("id", 7), ("traceback", "one\n  two\x07")])
    assert capsys.readouterr().out == "id         7\ntraceback  one\n             two\\x07\n"


def test_times_are_local_with_their_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert output.moment(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) == "2026-01-02 08:34:05+05:30"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_json_writes_times_as_iso(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"at": datetime(2026, 1, 2, tzinfo=UTC), "name": "ä"})
    assert capsys.readouterr().out == '{\n  "at": "2026-01-02T00:00:00+00:00",\n  "name": "\\u00e4"\n}\n'
