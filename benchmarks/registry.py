"""The scenarios by name. Each is imported when it is asked for, so that one that lacks a library stops no other."""

import importlib
from typing import NamedTuple, cast

from benchmarks.scenario import Scenario


class Entry(NamedTuple):
    """One scenario."""

    run: str
    """module:function."""
    about: str
    repeat: int = 3
    long: bool = False
    """Part of ``all`` only in a quick run."""

    def load(self) -> Scenario:
        """Import it.

        :raises ImportError, AttributeError: it is not there.
        """
        module, _, function = self.run.partition(":")
        return cast(Scenario, getattr(importlib.import_module(module), function))


SCENARIOS = {
    "claim": Entry("benchmarks.claim:claim", "the poll statement alone: four variants, 1 to 16 clients", repeat=1),
    "drain": Entry("benchmarks.drain:drain", "50,000 tasks that do nothing, until all are completed; and the floor"),
    "paced": Entry("benchmarks.paced:paced", "producers and a supervisor at a steady rate for a minute", repeat=1),
    "latency": Entry("benchmarks.latency:latency", "idle workers: from the commit to the first line of the task"),
    "cpu": Entry("benchmarks.cpu:cpu", "pure Python tasks, in turn with multiprocessing.Pool"),
    "mixed": Entry("benchmarks.mixed:mixed", "long and short tasks of one type: who waits behind whom"),
    "horizon": Entry("benchmarks.horizon:horizon", "a drain beside an old snapshot, against one without"),
    "backlog": Entry("benchmarks.backlog:backlog", "a claim beside millions of rows that it does not take", repeat=1),
    "retention": Entry(
        "benchmarks.retention:retention", "ten million ended tasks go, as a range and in batches", repeat=1
    ),
    "scale": Entry("benchmarks.scale:scale", "1 to 16 supervisors on one table"),
    "enqueue": Entry("benchmarks.enqueue:enqueue", "queueing tasks, one at a time, many, and by 16 clients at once"),
    "recovery": Entry("benchmarks.recovery:recovery", "SIGKILL of workers and supervisors", repeat=1),
    "memory": Entry("benchmarks.memory:memory", "a parent with 16 slots, a million rows, and its workers", repeat=1),
    "soak": Entry(
        "benchmarks.soak:soak", "whether anything grows under a steady load of all sorts", repeat=1, long=True
    ),
    "peers": Entry("benchmarks.peers.comparison:peers", "other queues, in the same run on the same machine", repeat=1),
}
