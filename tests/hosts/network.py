"""Hosts that are network namespaces, each with a wire of its own to the database's, which can be cut and mended.

Nothing is put into the namespace that the tests run in, and nothing leads out of these. A host also has a name, a boot
id and a pid namespace of its own, so a supervisor there looks to another one as if it were on another machine.
"""

import os
import shutil
import subprocess
import uuid
from pathlib import Path

WIRE = "wire"
"""A host's end of its wire; the other end has the host's name."""
NOBODY = "02:00:00:00:00:99"
"""A hardware address that no interface has: what is sent there is lost without a word."""
LOST = "10"
"""Preference of the rule that loses one connection's packets."""
IDENTITY = 'echo "$0" >/proc/sys/kernel/hostname; [ -z "$1" ] || mount --bind "$1" "$2"; shift 2; exec "$@"'
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def missing() -> str | None:
    """Why there can be no such hosts here, or None."""
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    for program, package in (("ip", "iproute2"), ("unshare", "util-linux")):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: {package})"
    name = f"pgsched-{os.getpid()}-probe"
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "add", WIRE, "type", "veth", "peer", "name", "other")
        subprocess.run(["unshare", "--uts", "--pid", "--mount-proc", "--fork", "true"], check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.decode(errors='replace').strip()}"
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
    return None


class Network:
    """The database's namespace, and one for each host.

    :param hosts: their names.
    :param place: a directory for what makes the hosts different.
    """

    def __init__(self, hosts: tuple[str, ...], place: Path) -> None:
        self._place = place
        self._numbers = {host: number for number, host in enumerate(hosts, 1)}
        self._down: set[str] = set()
        self._silent: set[str] = set()
        self._lost: set[str] = set()
        for name in ("database", *hosts):
            _ip("netns", "add", self.namespace(name))
            _ip("-n", self.namespace(name), "link", "set", "lo", "up")
        for host in hosts:
            self._lay_wire(host)

    def namespace(self, name: str) -> str:
        """How the kernel calls a host's namespace, or the database's."""
        return f"pgsched-{os.getpid()}-{name}"

    def database_of(self, host: str) -> str:
        """The address under which a host sees the database."""
        return f"10.0.{self._numbers[host]}.1"

    def address(self, host: str) -> str:
        return f"10.0.{self._numbers[host]}.2"

    def inside(self, name: str) -> tuple[str, ...]:
        """What starts a command in a namespace."""
        return ("ip", "netns", "exec", self.namespace(name))

    def on(self, host: str, *, own_boot: bool = True, own_pids: bool = True) -> tuple[str, ...]:
        """What starts a command as if it were on another machine.

        :param own_boot: False: it has this machine's boot id, like another container on it.
        :param own_pids: False: it has this machine's pid namespace, whose number is the same on every machine.
        """
        boot = self._place / f"boot-{host}"
        if not boot.exists():
            boot.write_text(f"{uuid.uuid4()}\n")
        pids = ("--pid", "--mount-proc") if own_pids else ("--mount",)
        identity = ("sh", "-c", IDENTITY, host, str(boot) if own_boot else "", BOOT_ID)
        return (*self.inside(host), "unshare", "--uts", *pids, "--fork", "--kill-child", *identity)

    def cut(self, host: str) -> None:
        """Pull the cable: the host sees at once that it has no link."""
        self._down.add(host)
        _ip("-n", self.namespace(host), "link", "set", WIRE, "down")

    def silence(self, host: str) -> None:
        """Lose every packet, both ways, and tell nobody."""
        self._silent.add(host)
        for name, wire, peer in self._ends(host):
            _ip("-n", name, "neigh", "replace", peer, "lladdr", NOBODY, "dev", wire, "nud", "permanent")

    def lose(self, host: str, port: int) -> None:
        """Lose every packet of one connection, both ways, and tell nobody; `port` is the host's."""
        self._lost.add(host)
        for name, end in ((self.namespace(host), "sport"), (self.namespace("database"), "dport")):
            _ip("-n", name, "rule", "add", "pref", LOST, "ipproto", "tcp", end, str(port), "blackhole")

    def mend(self, host: str) -> None:
        """Undo whatever was done to the host's wire."""
        if host in self._down:
            _ip("-n", self.namespace(host), "link", "set", WIRE, "up")
        if host in self._silent:
            for name, wire, peer in self._ends(host):
                _ip("-n", name, "neigh", "delete", peer, "dev", wire)
        if host in self._lost:
            for name in (self.namespace(host), self.namespace("database")):
                _ip("-n", name, "rule", "delete", "pref", LOST)
        for harmed in (self._down, self._silent, self._lost):
            harmed.discard(host)

    def close(self) -> None:
        """Remove the namespaces, and the wires with them."""
        for name in ("database", *self._numbers):
            _ip("netns", "delete", self.namespace(name))

    def _lay_wire(self, host: str) -> None:
        name, database = self.namespace(host), self.namespace("database")
        _ip("-n", name, "link", "add", WIRE, "type", "veth", "peer", "name", host, "netns", database)
        _ip("-n", name, "address", "add", f"{self.address(host)}/30", "dev", WIRE)
        _ip("-n", database, "address", "add", f"{self.database_of(host)}/30", "dev", host)
        _ip("-n", name, "link", "set", WIRE, "up")
        _ip("-n", database, "link", "set", host, "up")

    def _ends(self, host: str) -> list[tuple[str, str, str]]:
        """Both ends of a wire: the namespace, the interface, and the address that is seen at the other end."""
        return [
            (self.namespace(host), WIRE, self.database_of(host)),
            (self.namespace("database"), host, self.address(host)),
        ]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=30)
