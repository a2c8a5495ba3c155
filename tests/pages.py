"""Pages that say what to type, and a shell that types it: what stands in docs/ is run by tests.

A block is what stands between two fences, with its kind: ``sh``, ``sql``, ``python``, or ``text`` for what the block
before prints. Blocks run in their order, in one directory and one shell, as a reader would. In a ``text`` block ``…``
stands for anything within a line, and a line of its own that is ``…`` for any lines.
"""

import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psycopg

from tests.support import ROOT, descendants, eventually, gone

_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_LOOKS = ("pgsched status", "pgsched show", "pgsched tasks", "curl ")
"""What may be asked again until it answers as the page says: the reader takes longer than a test does."""
PATIENCE = 40.0


class Block(NamedTuple):
    """A fenced block of a page."""

    kind: str
    text: str
    line: int
    """Of its first fence."""


def blocks(text: str, *kinds: str) -> list[Block]:
    """The blocks of a page or a part of it, in their order."""
    found = [Block(match[1], match[2], text.count("\n", 0, match.start()) + 1) for match in _FENCED.finditer(text)]
    return [block for block in found if not kinds or block.kind in kinds]


def sections(text: str) -> dict[str, str]:
    """A page by its headings of the second level; under no name, what comes before the first."""
    parts = ["", *_HEADING.split(text)]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def queries(block: Block) -> list[str]:
    """The statements of a ``sql`` block; none of our pages has a semicolon in one."""
    return [query.strip() for query in block.text.split(";") if query.strip()]


def rows(text: str) -> list[list[str]]:
    """The cells of all tables, without the heads."""
    bodies = re.findall(r"^\|-[-|]*\n((?:\|.*\n?)*)", text, re.MULTILINE)
    lines = [line for body in bodies for line in body.splitlines()]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def matches(shown: str, printed: str) -> bool:
    """Whether a program has printed what a page shows. Blanks at the end of lines do not count, and may not be seen."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "…" else f"{re.escape(line.rstrip()).replace('…', '.*')}[ ]*\n"
        for line in shown.splitlines()
    )
    return re.fullmatch(pattern, printed if printed.endswith("\n") or not printed else f"{printed}\n") is not None


class Reader:
    """Somebody who types what a page says, in two terminals: ``pgsched run`` has one of its own.

    :param directory: where he works; has a ``.venv`` with this pgsched.
    :param dsn: where what he types goes.
    """

    def __init__(self, directory: Path, dsn: str) -> None:
        programs = directory / ".venv/bin"
        programs.mkdir(parents=True)
        for name, start in (("pgsched", "-m pgsched"), ("python", "")):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {start} "$@"\n')
            program.chmod(0o755)
        (programs / "activate").write_text(f"PATH={shlex.quote(str(programs))}:$PATH\n")
        self.directory = directory
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        ours = {"PGSCHED_DSN": dsn, "PGSCHED_METRICS_ADDRESS": "127.0.0.1:0"}
        self._environment = {**inherited, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **ours}
        self._dsn = dsn
        self._errors = directory / ".errors"
        self._shell = self._start(["bash", "--noprofile", "--norc"], self._errors)
        self._running: subprocess.Popen[bytes] | None = None
        self._log = directory / ".log"

    def follow(self, page: list[Block]) -> None:
        """Do what the blocks say, and see that they print what the page shows.

        :raises AssertionError: a block fails, or prints something else.
        """
        for block, following in zip(page, [*page[1:], None], strict=True):
            shown = following.text if following is not None and following.kind == "text" else None
            match block.kind:
                case "python":
                    self._write(block)
                case "sh" if block.text.startswith("pgsched run "):
                    self._supervise(block, shown)
                case "sh":
                    self._type(block, shown)
                case "sql":
                    with psycopg.connect(self._dsn, autocommit=True, application_name="tests") as connection:
                        connection.execute(block.text.encode())
                case "text":
                    continue
                case _:
                    raise AssertionError(f"line {block.line}: nobody types {block.kind}")

    def type(self, text: str) -> str:
        """Run lines in the shell; what they print.

        :raises AssertionError: the last one fails, or never ends.
        """
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._errors.write_text("")
        self._shell.stdin.write(f'{text}\necho "== $?"\n'.encode())
        self._shell.stdin.flush()
        printed, deadline = "", time.monotonic() + PATIENCE
        while not (end := re.search(r"^== (\d+)\n\Z", printed, re.MULTILINE)):
            left = deadline - time.monotonic()
            assert left > 0, f"{text} still runs; it has printed {printed!r}"
            if select.select([self._shell.stdout], [], [], left)[0]:
                data = os.read(self._shell.stdout.fileno(), 65536)
                assert data, f"{text} has ended the shell: {self._errors.read_text()}"
                printed += data.decode()
        assert end[1] == "0", f"{text} ended with {end[1]}: {printed}{self._errors.read_text()}"
        return printed[: end.start()]

    def close(self) -> None:
        """End whatever runs still."""
        for process in filter(None, (self._running, self._shell)):
            left = [found.pid for found in descendants(process.pid)]
            process.kill()
            process.wait(10)
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            eventually(partial(_gone, left), "what the page has started is gone")
        for stream in (self._shell.stdin, self._shell.stdout):
            assert stream is not None
            stream.close()

    def _start(self, command: list[str], errors: Path) -> subprocess.Popen[bytes]:
        with errors.open("wb") as file:
            return subprocess.Popen(
                command,
                cwd=self.directory,
                env=self._environment,
                stdin=subprocess.PIPE if command[0] == "bash" else subprocess.DEVNULL,
                stdout=subprocess.PIPE if command[0] == "bash" else file,
                stderr=file,
                start_new_session=True,
            )

    def _write(self, block: Block) -> None:
        """A module bears its file's name in its first line."""
        name = re.match(r"# (\w+\.py)\n", block.text)
        assert name, f"line {block.line}: a module says in its first line how it is called"
        (self.directory / name[1]).write_text(block.text)

    def _type(self, block: Block, shown: str | None) -> None:
        lines = block.text.strip()
        again = lines.startswith(_LOOKS) and "\n" not in lines
        printed = ""

        def answered() -> bool:
            nonlocal printed
            printed = self.type(lines)
            return shown is None or matches(shown, printed)

        try:
            eventually(answered, timeout=PATIENCE if again else 0.0, every=0.1)
        except AssertionError as error:
            if "not within" not in str(error):
                raise
            raise AssertionError(f"line {block.line}: {lines}\nprinted\n{printed}\nnot\n{shown}") from None

    def _supervise(self, block: Block, shown: str | None) -> None:
        """``pgsched run`` in the other terminal, where one has ended meanwhile, or none was."""
        if self._running is not None:
            self._running.wait(PATIENCE)
        command = [str(self.directory / ".venv/bin/pgsched"), *shlex.split(block.text)[1:]]
        self._running = self._start(command, self._log)

        def logged() -> bool:
            text = self._log.read_text()
            assert self._running is not None
            assert self._running.poll() is None, f"line {block.line}: {block.text} has ended: {text}"
            return matches(f"…\n{shown or '…'}…\n", text)

        eventually(logged, f"line {block.line}: {block.text} says {shown}", timeout=PATIENCE)


def _gone(pids: list[int]) -> bool:
    return all(gone(pid) for pid in pids)
