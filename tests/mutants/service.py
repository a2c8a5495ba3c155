"""The guards of the service: what starves the watchdog, what does not, and what ``systemd install`` leaves alone."""

from typing import Final

from tests.mutants.mutant import Mutant

LIVENESS: Final = "unit/test_liveness.py"
INSTALL: Final = "unit/test_cli_systemd.py"
STARTUP: Final = "system/test_startup.py"
UNIT: Final = "unit/test_service_unit.py"

SERVICE: Final = (
    Mutant(
        "watchdog-starved",
        "ops/observation.py",
        "            if not line.stuck:\n                self._notifier.alive()\n",
        "            self._notifier.alive()\n",
        "unit/test_observation.py::test_who_is_stuck_starves_the_watchdog_and_says_so",
    ),
    Mutant(
        "watchdog-patience",
        "supervisor/liveness.py",
        "if now - since > self._patience[part]",
        "if now - since > 2 * self._patience[part]",
        f"{LIVENESS}::test_each_part_has_a_patience_of_its_own",
    ),
    Mutant(
        "watchdog-outage",
        "supervisor/supervisor.py",
        "            self.vitals.liveness.moved(Part.CLAIMS, Part.LEASE)\n",
        "",
        f"{LIVENESS}::test_an_outage_does_not_starve_the_watchdog",
    ),
    Mutant(
        "watchdog-failed-turn",
        "supervisor/duty.py",
        "            self._on_turn()\n",
        "            if well:\n                self._on_turn()\n",
        f"{LIVENESS}::test_a_turn_counts_whether_or_not_it_succeeds",
    ),
    Mutant(
        "watchdog-empty-slots",
        "supervisor/liveness.py",
        "        if any(slots.get(state) for state in READY):\n            self.moved(Part.SLOTS)\n",
        "        self.moved(Part.SLOTS)\n",
        f"{LIVENESS}::test_slots_move_while_one_of_them_has_a_worker_that_is_ready",
    ),
    Mutant(
        "watchdog-only-while-running",
        "supervisor/vitals.py",
        "return self.liveness.stuck() if self._state() is SupervisorState.RUNNING else []",
        "return self.liveness.stuck()",
        f"{LIVENESS}::test_who_starts_or_stops_has_limits_of_his_own",
    ),
    Mutant(
        "expendable",
        "pool/boot.py",
        "min(int(file.read()) + EXPENDABLE, 1000)",
        "int(file.read())",
        "pool/test_isolation.py::test_the_kernel_takes_a_worker_before_the_supervisor",
    ),
    Mutant(
        "install-over",
        "cli/systemd.py",
        "            if _differs(path, content):\n",
        "            if False:\n",
        f"{INSTALL}::test_what_was_changed_is_not_written_over",
    ),
    Mutant(
        "install-rights",
        "cli/systemd.py",
        "(text, 0o600)",
        "(text, 0o644)",
        f"{INSTALL}::test_install_writes_unit_and_environment",
    ),
    Mutant(
        "install-line-break",
        "cli/systemd.py",
        "        if not value.isprintable():\n",
        "        if False:\n",
        f"{INSTALL}::test_what_is_wrong_is_named_before_anything_is_written",
    ),
    Mutant(
        "unit-start-timeout",
        "ops/unit.py",
        "{self.db_timeout + self.boot_timeout + STARTING:g}",
        "{self.boot_timeout + STARTING:g}",
        f"{INSTALL}::test_install_writes_unit_and_environment",
    ),
    Mutant(
        "unit-stop-timeout",
        "ops/unit.py",
        "{self.drain_timeout + 4 * self.db_timeout + STOPPING:g}",
        "{4 * self.db_timeout + STOPPING:g}",
        f"{UNIT}::test_f31_the_drain_ends_before_systemd_ends_it",
    ),
    Mutant(
        "unit-stop-calls",
        "ops/unit.py",
        "4 * self.db_timeout + STOPPING:g}",
        "STOPPING:g}",
        f"{UNIT}::test_f31_the_drain_ends_before_systemd_ends_it",
    ),
    Mutant(
        "wait-ends",
        "cli/run.py",
        "            if left <= 0:\n                raise\n",
        "            if patience == 0:\n                raise\n            left = ASK_AGAIN\n",
        f"{STARTUP}::test_the_wait_for_a_database_has_an_end",
    ),
    Mutant(
        "term-waiting",
        "cli/run.py",
        "    signal.signal(signal.SIGTERM, _leave)\n",
        "",
        f"{STARTUP}::test_f33_a_signal_ends_the_wait_for_a_database",
    ),
    Mutant(
        "term-starting",
        "cli/run.py",
        "    signal.signal(signal.SIGTERM, lambda *_: stop.set())\n",
        "",
        f"{STARTUP}::test_f33_a_signal_before_the_loop_hears_it_leaves_no_directory",
    ),
    Mutant(
        "term-silent-names",
        "cli/run.py",
        'LooseThreads().submit(database.connect, "run").result()',
        'database.connect("run")',
        f"{STARTUP}::test_f33_a_signal_does_not_wait_for_a_silent_name_server",
    ),
    Mutant(
        "term-password",
        "cli/run.py",
        "            source.give_up()\n",
        "            pass\n",
        f"{STARTUP}::test_a_signal_leaves_nothing_behind_that_makes_a_password",
    ),
)
