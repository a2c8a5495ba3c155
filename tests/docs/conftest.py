"""Fixtures of the tests that do what the pages say."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages import Reader
from tests.system.conftest import pgsched_cli

__all__ = ["pgsched_cli", "reader"]


@pytest.fixture
def reader(empty_dsn: str, tmp_path: Path) -> Iterator[Reader]:
    """Somebody in an empty directory, with an empty database."""
    found = Reader(tmp_path, empty_dsn)
    yield found
    found.close()
