"""The article's schema and statements, to the letter, for the tests that run them beside our own."""

from pathlib import Path


def text(name: str) -> str:
    """One of the ``.sql`` files here, by its name without the ending."""
    return (Path(__file__).parent / f"{name}.sql").read_text()
