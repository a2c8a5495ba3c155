"""Which files a demo finds."""

import errno
import os
from pathlib import Path

import pytest

from pgsched.cli.files import collect, standard_library
from pgsched.errors import UsageError


def test_all_regular_files_below_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "sub" / "__pycache__").mkdir(parents=True)
    for name in ("a", "sub/b", "sub/.hidden", "sub/__pycache__/c.pyc"):
        (tmp_path / name).write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    found = collect(tmp_path)
    assert [os.path.relpath(path, tmp_path) for path in found.files] == [
        "a",
        "sub/.hidden",
        "sub/__pycache__/c.pyc",
        "sub/b",
    ]
    assert found.passed_over == 0


def test_a_name_that_json_cannot_hold_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("x")
    with open(os.fsencode(tmp_path) + b"/\xff", "w") as file:
        file.write("x")
    found = collect(tmp_path)
    assert (len(found.files), found.passed_over) == (1, 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("x")
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0)
    (tmp_path / "closed").mkdir(0)
    found = collect(tmp_path)
    assert (len(found.files), found.passed_over) == (1, 2)


def test_a_directory_that_may_only_be_listed_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "good").write_text("x")
    listed = tmp_path / "listed"
    listed.mkdir()
    (listed / "file").write_text("x")
    lstat = os.lstat

    def refusing(path: str) -> os.stat_result:
        # What the kernel says to anybody but root where the directory has no x.
        if Path(path).parent == listed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return lstat(path)

    monkeypatch.setattr(os, "lstat", refusing)
    found = collect(tmp_path)
    assert (len(found.files), found.passed_over) == (1, 1)


@pytest.mark.parametrize("kind", ["missing", "file", "empty"])
def test_a_directory_that_is_none_or_empty(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "file":
        path.write_text("x")
    elif kind == "empty":
        path.mkdir()
    with pytest.raises(UsageError, match=f"^DIRECTORY '{path}': "):
        collect(path)


def test_the_standard_library_without_other_peoples_packages_and_caches() -> None:
    found = standard_library()
    assert any(path.endswith("/json/__init__.py") for path in found.files)
    assert not any("/site-packages/" in path or "/__pycache__/" in path for path in found.files)
