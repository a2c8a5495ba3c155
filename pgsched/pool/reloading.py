"""The app anew while the old one serves: another forkserver imports it, and nothing changes until that has worked.

With the start method "spawn" the forkserver in service has no app, so the other one only tries the import and is then
dropped. Runs in the parent, in the loop; never blocks.
"""

import asyncio
import dataclasses
import math
import time
from typing import Any, Final

from pgsched.errors import PgschedError, PoolError
from pgsched.model import TaskType
from pgsched.pool.boot import read_tasks
from pgsched.pool.collector import Collector
from pgsched.pool.keeping import Keeper, import_overdue
from pgsched.pool.launcher import Forked, Loaded
from pgsched.pool.settings import PoolSettings
from pgsched.pool.stream import Sink

FORKSERVER: Final = "forkserver"


class Trial:
    """A forkserver that imports the app and has no workers (a :class:`pgsched.pool.keeping.Owner`).

    :param version: of pgsched, which it must have; see :class:`pgsched.pool.keeping.Keeper`.
    """

    def __init__(self, settings: PoolSettings, collector: Collector, sink: Sink, version: str | None) -> None:
        self._settings = settings
        self._answer: asyncio.Future[Loaded] = asyncio.get_running_loop().create_future()
        # When it dies after its answer, nobody asks.
        self._answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
        self.keeper = Keeper(
            dataclasses.replace(settings, start_method=FORKSERVER), collector, sink, self, self._happened, version
        )
        self.events: list[tuple[str, dict[str, Any]]] = []
        """What is to be told of it if it is taken."""

    async def load(self) -> dict[str, TaskType]:
        """Import; return the task types.

        :raises AppError, PoolError: it cannot be imported, or not in time, or by another version of pgsched.
        """
        self.keeper.turn(time.monotonic())
        try:
            async with asyncio.timeout(self._settings.boot_timeout):
                loaded = await self._answer
        except TimeoutError:
            raise import_overdue(self._settings) from None
        try:
            return read_tasks(loaded.task_types or [])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # The one thing that a reload does not read anew is ourselves.
            raise PoolError(
                f"cannot import {self._settings.app}: it comes with another version of pgsched, "
                f"for which a restart is needed ({error!r})"
            ) from None

    def groups(self) -> list[int]:
        """None: the forkserver in service looks after the workers, until this one takes over."""
        return []

    def loaded(self, message: Loaded) -> None:
        """The import has worked."""
        if not self._answer.done():
            self._answer.set_result(message)

    def forked(self, message: Forked) -> None:
        """Nothing was asked for."""

    def forsaken(self) -> None:
        """Nothing was asked for."""

    def count(self, now: float, lived: float, killed: bool, error: PgschedError) -> float:
        """It died: there is no second try."""
        if not self._answer.done():
            self._answer.set_exception(error)
        return math.inf

    def _happened(self, name: str, fields: dict[str, Any]) -> None:
        if name != "forkserver_died":
            self.events.append((name, fields))
