"""The guards of what is changed while tasks run: slots that come and go, another app."""

from typing import Final

from tests.mutants.mutant import Mutant

POOL: Final = "pool/test_live.py"
SLOTS: Final = "pool/test_slots.py"
BACKLOG: Final = "unit/test_backlog.py"
UNIT: Final = "unit/test_changing.py"
SYSTEM: Final = "system/test_live.py"

LIVE: Final = (
    Mutant(
        "live-one-by-one",
        "pool/retiring.py",
        "if absent < (max(1, len(every) // 2) if slot.worn == MAX_TASKS else 1):",
        "if True:",
        f"{POOL}::test_the_workers_are_replaced_one_by_one",
    ),
    Mutant(
        "live-at-rest",
        "pool/retiring.py",
        "or slot.reason is not None or slot.state is not SlotState.IDLE:",
        "or slot.reason is not None or slot.state not in (SlotState.IDLE, SlotState.BUSY):",
        f"{POOL}::test_new_code_is_taken_and_a_running_task_ends_in_the_old",
    ),
    Mutant(
        "worn-at-rest",
        "pool/retiring.py",
        "or slot.reason is not None or slot.state is not SlotState.IDLE:",
        "or slot.reason is not None or (slot.worn != MAX_TASKS and slot.state is not SlotState.IDLE):",
        f"{SLOTS}::test_a_long_task_keeps_no_other_worker_from_being_replaced",
    ),
    Mutant(
        "worn-at-rest-grown",
        "pool/retiring.py",
        "or slot.reason is not None or slot.state is not SlotState.IDLE:",
        "or slot.reason or (slot.worn in (MAX_TASKS, RELOADED) and slot.state is not SlotState.IDLE):",
        f"{SLOTS}::test_a_worker_that_has_grown_ends_its_task_and_keeps_no_other_from_being_replaced",
    ),
    Mutant(
        "worn-nothing-ahead",
        "pool/dispatching.py",
        "not slot.full and slot.worn is None:",
        "not slot.full and slot.knows is newest:",
        f"{SLOTS}::test_a_worker_that_has_grown_ends_its_task_and_keeps_no_other_from_being_replaced",
    ),
    Mutant(
        "live-nothing-ahead",
        "pool/dispatching.py",
        "not slot.full and slot.worn is None:",
        "not slot.full:",
        f"{POOL}::test_tasks_that_only_the_new_app_has_wait_for_a_worker_that_has_it",
    ),
    Mutant(
        "live-types",
        "pool/dispatching.py",
        "if task_type in slot.knows or task_type not in newest:",
        "if True:",
        f"{POOL}::test_tasks_that_only_the_new_app_has_wait_for_an_idle_worker_to_be_replaced",
    ),
    Mutant(
        "live-take-back",
        "pool/workers.py",
        "        waiting = slot.take_back()\n        if slot.state is SlotState.BOOTING:\n",
        "        waiting: list[Any] = []\n        if slot.state is SlotState.BOOTING:\n",
        f"{POOL}::test_what_was_sent_ahead_to_a_slot_that_goes_is_taken_back",
    ),
    Mutant(
        "live-surplus",
        "pool/workers.py",
        "        if slot.surplus:\n",
        "        if slot.reason == sizing.RESIZED:\n",
        f"{POOL}::test_a_task_is_held_to_its_limit_in_a_slot_that_goes",
    ),
    Mutant(
        "live-idle-first",
        "pool/sizing.py",
        "open_slots.sort(key=_worth, reverse=True)",
        "open_slots.sort(key=lambda slot: slot.number)",
        f"{POOL}::test_slots_without_a_task_go_first",
    ),
    Mutant(
        "live-opened-again",
        "pool/sizing.py",
        "            slot.reason = None\n",
        "            slot.reason = RESIZED\n",
        f"{POOL}::test_a_slot_that_was_to_go_and_is_wanted_again_stays",
    ),
    Mutant(
        "live-groups",
        "pool/keeping.py",
        "not self._launcher.take_over(owner.groups())",
        "not self._launcher.take_over([])",
        f"{POOL}::test_a_new_forkserver_looks_after_the_workers_of_the_old",
    ),
    Mutant(
        "live-owed",
        "pool/filling.py",
        "            # Those that it owes us would have the old app.\n            self.forsaken()\n",
        "",
        f"{POOL}::test_a_worker_that_the_old_forkserver_owes_is_born_of_the_new_one",
    ),
    Mutant(
        "live-retired-quietly",
        "pool/keeping.py",
        "        self._closed = True\n        self.kill()\n",
        "        self.kill()\n",
        f"{POOL}::test_new_code_is_taken_and_a_running_task_ends_in_the_old",
    ),
    Mutant(
        "live-died-meanwhile",
        "pool/keeping.py",
        "if self._launcher is None or not self.ready or not self._launcher.take_over(owner.groups()):",
        "if self._launcher is not None and not self._launcher.take_over(owner.groups()):",
        f"{POOL}::test_a_forkserver_that_dies_before_it_is_in_service_changes_nothing",
    ),
    Mutant(
        "live-claim-under-way",
        "supervisor/changing.py",
        "                async with exchange.quiet:\n",
        "                if True:\n",
        f"{SYSTEM}::test_a_claim_under_way_at_the_reload_brings_nothing_that_the_new_app_lacks",
    ),
    Mutant(
        "live-lost-claim",
        "supervisor/changing.py",
        "with suppress(DatabaseError, LeaseLostError):",
        "with suppress():",
        f"{UNIT}::test_a_claim_that_is_lost_meanwhile_is_no_failure_of_the_reload",
    ),
    Mutant(
        "live-standby",
        "supervisor/exchange.py",
        "        self._survey.keep(task_types)\n        self._standby.stand_down()\n",
        "        self._survey.keep(task_types)\n",
        "unit/test_standby.py::test_other_task_types_stand_it_down",
    ),
    Mutant(
        "live-survey",
        "supervisor/survey.py",
        "for key, known in self._known.items() if known.group.task_type in task_types}",
        "for key, known in self._known.items()}",
        "unit/test_survey.py::"
        "test_groups_of_types_that_are_not_served_any_more_are_forgotten_and_those_of_new_ones_looked_for",
    ),
    Mutant(
        "reload-version",
        "pool/keeping.py",
        "case Loaded() if self.version in (None, message.version):",
        "case Loaded() if True:",
        "system/test_live.py::test_an_app_is_not_reloaded_into_another_version_of_pgsched",
    ),
    Mutant(
        "scale-answer",
        "store/sql/announce.sql",
        "nullif(wanted_processes, $4::integer)",
        "NULL",
        "store/test_lease.py::test_a_number_that_was_asked_for_meanwhile_stays",
    ),
    Mutant(
        "live-give-back",
        "supervisor/changing.py",
        "self._give_back(self._backlog.discard(",
        "list(self._backlog.discard(",
        f"{UNIT}::test_a_reload_gives_back_what_the_new_app_lacks",
    ),
    Mutant(
        "live-at-least-one",
        "supervisor/changing.py",
        "min(max(self._wanted + by, 1), MAX_PROCESSES)",
        "min(self._wanted + by, MAX_PROCESSES)",
        f"{UNIT}::test_there_is_always_a_slot_and_never_more_than_there_may_be",
    ),
    Mutant(
        "live-once-for-all",
        "supervisor/changing.py",
        "                self._reload_asked.clear()\n                await self._reload(exchange)\n",
        "                await self._reload(exchange)\n",
        f"{SYSTEM}::test_ten_hangups_at_once_are_two_reloads_at_most",
    ),
    Mutant(
        "live-version",
        "pool/reloading.py",
        "except (AttributeError, KeyError, TypeError, ValueError) as error:",
        "except ZeroDivisionError as error:",
        f"{POOL}::test_another_version_of_pgsched_is_a_reload_that_failed",
    ),
    Mutant(
        "live-descriptors",
        "pool/pool.py",
        "        processes = min(processes, descriptors.room())\n",
        "",
        f"{POOL}::test_there_are_no_more_slots_than_descriptors_for_them",
    ),
    Mutant(
        "live-descriptors-taken",
        "pool/pool.py",
        "        descriptors.allow()\n",
        "",
        f"{POOL}::test_a_pool_takes_the_descriptors_that_it_may_have",
    ),
    Mutant(
        "live-no-room",
        "pool/filling.py",
        "self.count(now, 0.0, at_work, error)",
        "self.count(now, 0.0, False, error)",
        f"{POOL}::test_a_host_without_room_for_more_workers_ends_none",
    ),
    Mutant(
        "live-terminal-log",
        "ops/logwriter.py",
        "signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTTOU,))",
        "pass",
        "pool/test_output.py::test_a_terminal_that_stops_who_writes_from_the_background_is_written_to_all_the_same",
    ),
    Mutant(
        "live-terminal-output",
        "pool/stream.py",
        "if os.isatty(descriptor):",
        "if False:",
        "pool/test_output.py::test_a_terminal_that_stops_who_writes_from_the_background_is_written_to_all_the_same",
    ),
    Mutant(
        "idle-sessions",
        "store/sql/session.sql",
        "set_config('idle_session_timeout', '0', false)",
        "NULL",
        "system/test_outage.py::test_a_limit_on_idle_sessions_ends_none_that_waits_for_work",
    ),
    Mutant(
        "standard-streams",
        "cli/main.py",
        "while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:",
        "while (descriptor := os.open(os.devnull, os.O_RDWR)) < 0:",
        "system/test_startup.py::test_what_workers_print_is_no_signal_where_streams_were_closed",
    ),
)
