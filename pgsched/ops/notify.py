"""Tells systemd how the service is: ready, busy with what, alive, stopping (the protocol of ``sd_notify(3)``).

One datagram a message, sent without waiting: a message that cannot be delivered is dropped, and the caller is told; but
that it is ready is said again with the next status, for a manager that has not heard it ends the service. Where there
is no systemd, every call does nothing. Runs in the parent's loop.
"""

import os
import socket
import time
from collections.abc import MutableMapping

MOST = 512
"""Characters of a status text; it is one line of ``systemctl status``."""


class Notifier:
    """The way to the service manager.

    :param address: of its socket; a leading ``@`` stands for the abstract namespace; None for no manager.
    :param watchdog: seconds after which the manager ends a silent service; None when it does not watch.
    """

    def __init__(self, address: str | None, watchdog: float | None = None) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        self._unheard = False
        """Whether the manager does not know yet that the service is ready."""
        self.watchdog_interval = watchdog / 2 if watchdog is not None and address is not None else None
        """Seconds between two calls of :meth:`alive`; None when nobody watches."""

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str] | None = None) -> "Notifier":
        """Read, and remove, what systemd has put into the environment: it is for this process and none that it starts.

        :param environ: default ``os.environ``.
        """
        environ = os.environ if environ is None else environ
        address = environ.pop("NOTIFY_SOCKET", "")
        watchdog = _watchdog(environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", ""))
        return cls(address if address[:1] in ("/", "@") and len(address) > 1 else None, watchdog)

    def ready(self, status: str = "") -> bool:
        """The service has started, or has finished reloading."""
        heard = self._send("READY=1", status)
        self._unheard = not heard
        return heard

    def status(self, status: str) -> bool:
        """What ``systemctl status`` shows."""
        return self.ready(status or "-") if self._unheard else self._send("", status or "-")

    def alive(self) -> bool:
        """The service is well; to be called every ``watchdog_interval``."""
        return self._send("WATCHDOG=1")

    def reloading(self) -> bool:
        """The service has begun to reload; :meth:`ready` ends it."""
        self._unheard = False
        return self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str = "") -> bool:
        """The service has begun to stop."""
        self._unheard = False
        return self._send("STOPPING=1", status)

    def close(self) -> None:
        """Say nothing more."""
        self._address = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, message: str, status: str = "") -> bool:
        """Send one datagram; True when it is on its way."""
        if self._address is None:
            return False
        if status:
            message = f"{message}\nSTATUS={' '.join(status.split())[:MOST]}".lstrip("\n")
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            if self._socket is None:
                self._socket = socket.socket(
                    socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
                )
            self._socket.sendto(message.encode("utf-8", "replace"), address)
        except OSError:
            return False
        return True


def _watchdog(microseconds: str, pid: str) -> float | None:
    if not (microseconds.isascii() and microseconds.isdecimal() and int(microseconds)):
        return None
    # Meant for somebody else: for the shell that started us, say.
    if pid and pid != str(os.getpid()):
        return None
    return int(microseconds) / 1e6
