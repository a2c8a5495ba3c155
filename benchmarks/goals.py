"""What the figures must come to on two processors that hold server, supervisor and workers together. Values only."""

from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.results import Figure, shown


class Goal(NamedTuple):
    """A bound for one result."""

    scenario: str
    result: str
    bound: float
    at_least: bool = False

    def holds(self, value: float) -> bool:
        """Whether a value keeps to it."""
        return value >= self.bound if self.at_least else value <= self.bound

    def row(self, measured: Mapping[str, Mapping[str, Figure]]) -> tuple[str, ...]:
        """Result, goal, what was measured, and the judgement, in words; `measured` is by scenario and name."""
        figure = measured.get(self.scenario, {}).get(self.result)
        value = None if figure is None else figure.value
        bound = f"{'at least' if self.at_least else 'at most'} {shown(self.bound)}"
        judgement = "not measured" if value is None else "holds" if self.holds(value) else "**missed**"
        return f"`{self.scenario}` `{self.result}`", bound, shown(value), judgement


GOALS = (
    Goal("drain", "tasks_per_s", 40_000, at_least=True),
    Goal("drain", "ratio_to_floor", 0.5, at_least=True),
    Goal("drain", "floor_tasks_per_s", 80_000, at_least=True),
    # One in a thousand of the rate: a minute's growth would be less than what is under way at any moment.
    Goal("paced", "backlog_growth", 11),
    Goal("paced", "poll_p50_ms", 3.2),
    Goal("paced", "start_p99_ms", 25),
    Goal("paced", "postgres_cores", 0.5),
    Goal("latency", "pickup_p50_ms", 1.0),
    Goal("latency", "pickup_p99_ms", 2.5),
    Goal("latency", "scheduled_p99_ms", 10),
    Goal("cpu", "speed_vs_pool", 0.98, at_least=True),
    Goal("horizon", "last_slice_ratio", 0.9, at_least=True),
    Goal("backlog", "worst_ratio_to_empty", 1.5),
    Goal("backlog", "backlog15_worst_ratio_to_empty", 1.5),
    Goal("retention", "drop_s", 1.0),
    Goal("retention", "drop_left_mb", 1.0),
    Goal("scale", "ratio_16_to_1", 0.9, at_least=True),
    Goal("enqueue", "notify_cost_ratio", 1.1),
    Goal("recovery", "worker_requeue_ms", 50),
    Goal("recovery", "slot_ready_ms", 300),
    Goal("recovery", "restart_takeover_ms", 1000),
    Goal("memory", "parent_mb", 100),
    # What shared memory and dead tuples come to depends on others, and on when vacuum comes by.
    *(
        Goal("soak", f"{name}_growth", 0.05)
        for name in (
            *("parent_unique", "parent_descriptors", "forkserver_unique", "forkserver_descriptors"),
            *("worker_unique", "worker_descriptors", "live_table", "live_index", "ended_table", "ended_index"),
            *("failures", "supervisors", "metrics", "metrics_files", "claim_p99"),
        )
    ),
    Goal("soak", "tasks_per_s_growth", -0.05, at_least=True),
    Goal("peers", "drain_vs_pgqueuer", 1.0, at_least=True),
    Goal("peers", "drain_vs_procrastinate", 8, at_least=True),
    Goal("peers", "drain_vs_celery", 25, at_least=True),
    Goal("peers", "latency_vs_pgqueuer", 1.0),
    Goal("peers", "latency_vs_procrastinate", 1.0),
)
