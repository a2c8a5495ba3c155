"""What a scrape gets: all files of the directory and the supervisor's own process, in the format it asks for.

However many clients ask, one exposition is built at a time, in a thread, and pauses between two leave the interpreter
to the loop. No client gets one that was begun before it asked. Runs in the parent.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, generate_latest
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from pgsched.ops.collector import DirectoryCollector, Report

SHARE = 4.0
"""The next one is not begun sooner than this many times the last one's duration after that one's end: scrapes get a
fifth of the time at most."""
TIDY_INTERVAL = 10.0
"""Seconds between two looks for files of processes that are gone."""

Encoder = Callable[[Any], bytes]


class Rendered(NamedTuple):
    """What one scrape gets."""

    content_type: str
    body: bytes


class Exposition:
    """Builds what scrapes get, on demand.

    :param report: called once for each file or metric that had to be left out.
    """

    def __init__(self, collector: DirectoryCollector, report: Report) -> None:
        self._collector = collector
        self._report = report
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        ProcessCollector(registry=self._registry)
        self._unprintable: set[str] = set()
        self._begun_next: dict[str, asyncio.Task[Rendered]] = {}
        self._one_at_a_time = asyncio.Lock()
        self._rest_until = 0.0

    async def get(self, accept: str) -> Rendered:
        """The series as of now or later.

        :param accept: the request's ``Accept`` header, empty for none.
        """
        encoder, content_type = _negotiated(accept)
        building = self._begun_next.get(content_type)
        if building is None:
            building = asyncio.create_task(self._build(encoder, content_type), name="exposition")
            self._begun_next[content_type] = building
        # A client that hangs up must not take it away from the others.
        return await asyncio.shield(building)

    async def tidy_up(self) -> None:
        """Keep the number of files bounded; runs until cancelled."""
        while True:
            await asyncio.sleep(TIDY_INTERVAL)
            try:
                await asyncio.to_thread(self._collector.tidy)
            except Exception as error:
                # Not even where the host has no room for a thread now: there may be some the next time.
                self._report("directory", f"cannot be tidied up: {type(error).__name__}: {error}")

    async def _build(self, encoder: Encoder, content_type: str) -> Rendered:
        async with self._one_at_a_time:
            await asyncio.sleep(self._rest_until - time.monotonic())
            # From here on a new request needs a newer one.
            del self._begun_next[content_type]
            started = time.monotonic()
            body = await asyncio.to_thread(self.render, encoder)
            ended = time.monotonic()
            self._rest_until = ended + SHARE * (ended - started)
        return Rendered(content_type, body)

    def render(self, encoder: Encoder = generate_latest) -> bytes:
        """Build it now, in the caller's thread."""
        metrics = list(self._registry.collect())
        try:
            return encoder(_Collected(metrics))
        except Exception:
            return encoder(_Collected([metric for metric in metrics if self._printable(encoder, metric)]))

    def _printable(self, encoder: Encoder, metric: Metric) -> bool:
        """Whether a metric can be shown; a user's label may hold half a character."""
        try:
            encoder(_Collected([metric]))
        except Exception as error:
            if metric.name not in self._unprintable:
                self._unprintable.add(metric.name)
                self._report(metric.name, f"cannot be shown: {type(error).__name__}")
            return False
        return True


class _Collected(Collector):
    """Metrics that have been collected, in the shape that the encoders expect."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """All of them."""
        return self._metrics


def _negotiated(accept: str) -> tuple[Encoder, str]:
    try:
        return choose_encoder(accept)
    except Exception:
        # It takes versions that are no numbers in several ways.
        return choose_encoder("")
