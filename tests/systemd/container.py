"""A Debian tree, made for one session, booted with ``systemd-nspawn``: a real systemd to try the units under.

Needs root, debootstrap and systemd-nspawn. The tree comes from the mirror that apt is configured with, is of the same
release as the host, and is thrown away afterwards. Its network is the host's: a server on loopback can be reached.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support import ROOT, eventually

PACKAGES = "systemd,systemd-sysv,dbus,python3"
APP = Path("/srv/app")
VENV = APP / ".venv"
_NSPAWN = Path("/run/systemd/nspawn")
_MEMORY = Path("/sys/fs/cgroup/memory")
"""Where the first version of cgroups has its memory controller."""


class Missing(Exception):
    """Why there can be no container here."""


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def missing() -> str | None:
    """What it takes and is not there; None: nothing."""
    if os.geteuid() != 0:
        return "it needs root, to make and to boot a container"
    absent = [name for name in ("debootstrap", "systemd-nspawn", "nsenter", "apt-get") if shutil.which(name) is None]
    return f"{' and '.join(absent)} not found (Debian: debootstrap, systemd-container)" if absent else None


def make_tree(tree: Path) -> None:
    """Make a Debian tree with pgsched in it, in a virtual environment of the tree's own Python.

    :raises Missing: the mirror, or the package index, cannot be had.
    """
    mirror, release = _mirror()
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", release, str(tree), mirror]
    made = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **_proxies()}, check=False)
    if made.returncode != 0:
        raise Missing(f"debootstrap failed: {_last(made.stdout + made.stderr)}")
    for name in ("apt-daily.timer", "apt-daily-upgrade.timer", "systemd-tmpfiles-clean.timer"):
        (tree / "etc/systemd/system" / name).symlink_to("/dev/null")
    _install(tree)


def _mirror() -> tuple[str, str]:
    """Where apt gets this very release from."""
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    codename = release.get("VERSION_CODENAME", "").strip('"')
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Component: main"]
    for line in subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines():
        uri, of = line.split()
        if of == codename:
            return uri, codename
    raise Missing(f"apt knows no mirror of {codename or 'this release'}")


def _proxies() -> dict[str, str]:
    command = ["apt-config", "shell", "http_proxy", "Acquire::http::Proxy", "https_proxy", "Acquire::https::Proxy"]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return dict(word.split("=", 1) for word in shlex.split(told))


def _install(tree: Path) -> None:
    """What ``python -m venv`` and ``pip install`` would do inside, done from here: the tree needs no pip."""
    python = os.readlink(tree / "usr/bin/python3")
    home = tree / VENV.relative_to("/")
    packages = home / "lib" / python / "site-packages"
    packages.mkdir(parents=True)
    (home / "bin").mkdir()
    (home / "bin/python").symlink_to("/usr/bin/python3")
    (home / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    program = home / "bin/pgsched"
    program.write_text(f"#!{VENV}/bin/python\nfrom pgsched.cli.main import main\n\nraise SystemExit(main())\n")
    program.chmod(0o755)
    shutil.copytree(ROOT / "pgsched", packages / "pgsched", ignore=shutil.ignore_patterns("__pycache__"))
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(packages), "--only-binary=:all:"]
    command += ["--python-version", python.removeprefix("python"), *wanted]
    installed = subprocess.run(command, capture_output=True, text=True, check=False)
    if installed.returncode != 0:
        raise Missing(f"pip failed: {_last(installed.stderr)}")


class Container:
    """A booted tree.

    :raises Missing: it does not boot here.
    """

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self._log = tree.with_name("console")
        self._since = "-1day"
        _NSPAWN.mkdir(parents=True, exist_ok=True)
        self._memory = _memory_group()
        boot = ["systemd-nspawn", "--boot", "--register=no", "--keep-unit", "--quiet", "--console=pipe"]
        boot += ["--machine", f"pgsched-{os.getpid()}", "--directory", str(tree)]
        # A memory group of its own, where those are of the first version: what is made below it goes with it.
        enter = f"echo $$ >{self._memory}/cgroup.procs && " if self._memory else ""
        with self._log.open("wb") as console:
            self._nspawn = subprocess.Popen(
                ["sh", "-c", f"{enter}exec {shlex.join(boot)}"],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        try:
            self._pid = eventually(self._first_process, "systemd is up", timeout=30)
            eventually(lambda: self("systemctl is-system-running").out.strip() in ("running", "degraded"), timeout=60)
        except AssertionError:
            self.close()
            raise Missing(f"systemd-nspawn does not boot here: {_last(self._log.read_text())}") from None
        self.limits_memory = self._open_memory()
        """Whether systemd in there can limit a unit's memory."""

    def __call__(self, command: str, *, check: bool = False, timeout: float = 120.0) -> Done:
        """Run a command inside, as root would type it.

        :param check: fail the test unless it exits with 0.
        """
        words = ["nsenter", "--target", str(self._pid), "--all", "--wd=/", "env", "-i", "LANG=C.UTF-8", "HOME=/root"]
        words += [f"PATH={VENV}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "SYSTEMD_PAGER=", "sh", "-c", command]
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False
        )
        if check:
            assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}\n{self.journal()}"
        return Done(done.returncode, done.stdout, done.stderr)

    def path(self, inside: Path | str) -> Path:
        """Where a file of the tree is outside."""
        return self.tree / Path(inside).relative_to("/")

    def journal(self) -> str:
        """What the services have said."""
        return self(f"journalctl -o short-precise --no-pager -n 80 --since '{self._since}'").out

    def begin_journal(self) -> None:
        """Pass over what has been said so far."""
        self._since = self("date '+%F %T.%6N'").out.strip()

    def close(self) -> None:
        """Shut down."""
        if self._nspawn.poll() is None:
            # It asks the first process to end everything in order.
            self._nspawn.send_signal(signal.SIGTERM)
        try:
            self._nspawn.wait(30)
        except subprocess.TimeoutExpired:
            self._nspawn.kill()
            self._nspawn.wait(10)
        if self._memory is not None:
            _remove_group(self._memory)

    def _first_process(self) -> int | None:
        pid = self._nspawn.pid
        if self._nspawn.poll() is not None:
            raise AssertionError(f"systemd-nspawn ended with {self._nspawn.returncode}")
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                if Path(f"/proc/{child}/comm").read_text() == "systemd\n":
                    return int(child)
        return None

    def _open_memory(self) -> bool:
        """Let systemd limit memory.

        Of the first version's controllers a container sees only what it cannot write to, and systemd looks which there
        are only when it starts.
        """
        if self._memory is not None:
            self(f"mount -o remount,rw,bind {_MEMORY} && systemctl daemon-reexec")
            eventually(lambda: self("systemctl is-system-running").code == 0, "systemd is up again")
            return self(f"test -w {_MEMORY}/cgroup.procs").code == 0
        return "memory" in self("cat /sys/fs/cgroup/cgroup.controllers").out.split()


def _memory_group() -> Path | None:
    if not (_MEMORY / "cgroup.procs").exists():
        return None
    own = re.search(r"^\d+:(?:.*,)?memory(?:,.*)?:(/.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    group = _MEMORY / (own[1].lstrip("/") if own else "") / f"pgsched-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        return None
    return group


def _remove_group(group: Path) -> None:
    def removed() -> bool:
        for directory, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(directory)
        return not group.exists()

    eventually(removed, "the memory group is gone")


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


@contextlib.contextmanager
def container(place: Path) -> Iterator[Container]:
    """A booted container, its tree made in that directory.

    :raises Missing: there can be none.
    """
    reason = missing()
    if reason is not None:
        raise Missing(reason)
    make_tree(place / "tree")
    booted = Container(place / "tree")
    try:
        yield booted
    finally:
        booted.close()
