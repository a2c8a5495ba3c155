"""What ends a command: one line and an exit code, whatever was raised."""

import pytest

from pgsched.cli.guard import INTERNAL, guarded, one_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("two\nlines\tand  spaces", "two lines and spaces"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("bell\x07", r"bell\x07"),
        ("\u202eturned", r"\x202eturned"),
    ],
)
def test_nothing_gets_to_the_terminal_that_moves_it(text: str, line: str) -> None:
    assert one_line(text) == line


def test_a_line_is_not_longer_than_a_screen() -> None:
    assert one_line("x" * 100_000) == "x" * 2000 + "..."
    assert one_line("x" * 2000) == "x" * 2000


def test_an_error_that_nobody_foresaw_is_one_line_that_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    def body() -> int:
        raise RuntimeError("a bug\nin two lines")

    assert guarded(body) == INTERNAL
    line = "pgsched: internal error: RuntimeError: a bug in two lines (PGSCHED_DEBUG=1 shows where)\n"
    assert capsys.readouterr().err == line
