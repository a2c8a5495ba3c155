"""Everything by which a running supervisor can be observed, put together: logs, metrics, HTTP, systemd.

``cli`` makes one, hands its telemetry to the supervisor and the pool, and closes it last. Nothing in here decides
anything, and no part of it can hold the supervisor up. Runs in the parent.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from pgsched.config import Settings
from pgsched.events import LOGGER, emit
from pgsched.ops import logs
from pgsched.ops.directory import MetricsDirectory, make_directory, no_room
from pgsched.ops.notify import Notifier
from pgsched.ops.statusline import OutageWatch
from pgsched.ops.telemetry import OutageCounter, Telemetry

if TYPE_CHECKING:
    from pgsched.ops.http import Health, MetricsServer
    from pgsched.ops.metrics import Metrics

RECORDER = "pgsched.ops.recorder:make"
PREPARATION = "pgsched.ops.guarded:prepare"


class Observation:
    """Observes one supervisor, from before its first step until after its last.

    :param redact: takes passwords out of a text.
    :param level: the lowest one that is logged.
    :raises UsageError: no directory for the metrics can be made.
    :raises ResourceError: there is no room for it now.
    """

    def __init__(self, settings: Settings, *, redact: Callable[[str], str], level: int = logging.INFO) -> None:
        self._address = settings.metrics_address
        self._directory: MetricsDirectory | None = None
        self._metrics: Metrics | None = None
        self._server: MetricsServer | None = None
        self._running: list[asyncio.Task[None]] = []
        self._notifier = Notifier.from_environment()
        if self._address is not None:
            self._directory = make_directory()
            self._metrics = _metrics(self._directory)
        self._output = logs.setup("json" if settings.log_format == "json" else "text", redact=redact, level=level)
        self.telemetry = Telemetry(self._metrics, self._notifier)
        self._outages: list[logging.Handler] = [OutageWatch(self.telemetry.line)]
        if self._metrics is not None:
            self._outages.append(OutageCounter(self._metrics))
        for hearing in self._outages:
            LOGGER.addHandler(hearing)

    @property
    def recorder(self) -> str | None:
        """What the pool is to call in each worker; None for nothing."""
        return RECORDER if self._metrics is not None else None

    @property
    def preparation(self) -> str | None:
        """What the pool is to call before the user's module is imported; None for nothing."""
        return PREPARATION if self._metrics is not None else None

    async def start(self, health: "Health", stuck: Callable[[], list[str]] = list) -> None:
        """Listen, and begin what goes on in the background; to be called before the pool starts.

        :param stuck: names the parts of the supervisor that have stopped moving: then the watchdog is not fed.
        :raises UsageError: the address is none, or not for this user.
        :raises ResourceError: it cannot be had now.
        """
        if self._address is not None and self._directory is not None:
            from pgsched.ops.collector import DirectoryCollector
            from pgsched.ops.exposition import Exposition
            from pgsched.ops.http import MetricsServer

            exposition = Exposition(DirectoryCollector(self._directory.path, _left_out), _left_out)
            self._server = MetricsServer(*self._address, scrape=exposition.get, health=health)
            host, port = await self._server.start()
            emit("metrics_served", address=f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
            self._begin(exposition.tidy_up())
        self._begin(self.telemetry.run())
        if self._notifier.watchdog_interval is not None:
            self._begin(self._keep_alive(self._notifier.watchdog_interval, stuck))

    async def close(self) -> None:
        """End everything; to be called when no worker is left, and the supervisor has said its last word."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        if self._server is not None:
            await self._server.close()
        self.telemetry.summarise()
        for hearing in self._outages:
            LOGGER.removeHandler(hearing)
        if self._metrics is not None:
            self._metrics.close()
        if self._directory is not None:
            self._directory.close()
        self._notifier.close()
        self._output.close()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._running.append(asyncio.create_task(work))

    async def _keep_alive(self, interval: float, stuck: Callable[[], list[str]]) -> None:
        """What systemd watches is that the loop turns, and that every part moves in it.

        A database that is away keeps none of them from moving: it is no reason to be restarted.
        """
        line = self.telemetry.line
        while True:
            told, line.stuck = line.stuck, stuck()
            if line.stuck != told:
                emit("stuck", logging.ERROR, parts=", ".join(line.stuck) or "none")
                self._notifier.status(line.text())
            if not line.stuck:
                self._notifier.alive()
            await asyncio.sleep(interval)


def _metrics(directory: MetricsDirectory) -> "Metrics":
    # Costs a command 70 ms that serves no metrics.
    from pgsched.ops.metrics import Metrics

    try:
        return Metrics(directory.path)
    except OSError as error:
        directory.close()
        raise no_room(directory.path.parent, error) from None


def _left_out(name: str, reason: str) -> None:
    emit("metrics_left_out", logging.WARNING, name=name, reason=reason)
