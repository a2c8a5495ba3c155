"""Puts one supervisor together from its parts, runs it, and takes it apart again."""

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import Any

import pgsched
from pgsched.cli.threads import LooseThreads
from pgsched.config import Settings
from pgsched.errors import ExitCode
from pgsched.events import emit
from pgsched.model import Claim, Outcome
from pgsched.ops.observation import Observation
from pgsched.pool.pool import Ended, Pool, PoolSettings
from pgsched.store.redaction import redact
from pgsched.store.store import Store
from pgsched.supervisor.supervisor import Supervisor

STOP = (signal.SIGTERM, signal.SIGINT)
"""Each drains; a second one, of either kind, cuts the drain short."""


async def run(
    settings: Settings,
    *,
    level: int = logging.INFO,
    on_outcome: Callable[[Claim, Outcome], None] | None = None,
    stop: asyncio.Event | None = None,
) -> ExitCode:
    """Run one supervisor until a signal or ``stop`` ends it.

    :param level: the lowest that is logged.
    :param on_outcome: also hears of every outcome.
    :raises PgschedError: it could not start, or had to give up.
    """
    loop = asyncio.get_running_loop()
    loop.set_default_executor(LooseThreads())
    observation = Observation(settings, redact=redact, level=level)
    try:
        supervisor = _build(settings, observation, on_outcome)
        await observation.start(supervisor.vitals.health, supervisor.vitals.stuck)
        for number in STOP:
            loop.add_signal_handler(number, supervisor.stop)
        loop.add_signal_handler(signal.SIGHUP, supervisor.changes.reload)
        loop.add_signal_handler(signal.SIGTTIN, supervisor.changes.step, 1)
        loop.add_signal_handler(signal.SIGTTOU, supervisor.changes.step, -1)
        stopping = asyncio.create_task(_stop_when(stop, supervisor))
        try:
            code = await supervisor.run()
        finally:
            stopping.cancel()
        emit("stopped", exit_code=int(code))
        return code
    finally:
        await observation.close()


def _build(
    settings: Settings, observation: Observation, on_outcome: Callable[[Claim, Outcome], None] | None
) -> Supervisor:
    telemetry = observation.telemetry
    dsn = settings.dsn or ""
    store = Store(
        dsn,
        namespace=settings.namespace,
        db_timeout=settings.db_timeout,
        pooled=settings.pooled,
        partitions=settings.partitions,
    )

    def heard(ended: list[Ended]) -> None:
        supervisor.on_outcomes(ended)
        if on_outcome is not None:
            for claim, outcome in ended:
                on_outcome(claim, outcome)

    def happened(name: str, fields: dict[str, Any]) -> None:
        telemetry.pool_event(name, fields)
        if name == "worker_ready":
            supervisor.on_worker()

    pool = Pool(
        PoolSettings(
            app=settings.app,
            processes=settings.processes,
            start_method=settings.start_method,
            max_tasks_per_worker=settings.max_tasks_per_worker,
            max_memory_per_worker=settings.max_memory_per_worker,
            boot_timeout=settings.boot_timeout,
            preparation=observation.preparation,
            recorder=observation.recorder,
            dsn=dsn,
        ),
        heard,
        happened,
    )
    supervisor = Supervisor(settings, store, pool, telemetry, version=pgsched.__version__, on_ready=telemetry.ready)
    return supervisor


async def _stop_when(stop: asyncio.Event | None, supervisor: Supervisor) -> None:
    if stop is not None:
        await stop.wait()
        supervisor.stop()
