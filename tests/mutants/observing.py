"""The guards of what observes: metrics of a user's own, the server of the metrics, the log, the service manager."""

from typing import Final

from tests.mutants.mutant import Mutant

FILES: Final = "pool/test_metrics_files.py::TestNoRoomForUsersOwnMetrics"
POOLED: Final = "pool/test_metrics_pool.py::test_a_directory_that_is_full_of_holes_or_gone_harms_no_task"
TIDYING: Final = "unit/test_metrics.py::TestTidyingUp"
WRITER: Final = "unit/test_logs.py::TestWriter"
NOTIFY: Final = "unit/test_notify.py"
RECORDER: Final = "pool/test_metrics_files.py::TestRecorder"

OBSERVING: Final = (
    Mutant(
        "own-metrics-beginning",
        "ops/guarded.py",
        "                reserve(self._path, BEGINNING)\n",
        "                pass\n",
        f"{FILES}::test_metrics_that_a_task_imports_later_are_guarded_too",
    ),
    Mutant(
        "own-metrics-growth",
        "ops/guarded.py",
        "                if needed > self._file._capacity:\n",
        "                if False:\n",
        f"{FILES}::test_files_have_their_blocks_before_they_are_written",
    ),
    Mutant(
        "own-metrics-grows-once",
        "ops/guarded.py",
        " and needed <= 2 * self._file._capacity:",
        ":",
        f"{FILES}::test_what_is_too_long_for_a_file_is_counted_in_memory",
    ),
    Mutant(
        "own-metrics-full",
        "ops/guarded.py",
        "            except OSError as error:\n",
        "            except ZeroDivisionError as error:\n",
        f"{FILES}::test_a_file_that_cannot_grow_keeps_what_it_has",
    ),
    Mutant(
        "own-metrics-gone",
        "ops/guarded.py",
        "        except Exception as error:\n            self._give_up",
        "        except ZeroDivisionError as error:\n            self._give_up",
        f"{FILES}::test_a_directory_that_is_gone_costs_a_line_for_each_file",
    ),
    Mutant(
        "own-metrics-imported-later",
        "ops/guarded.py",
        "        sys.modules[name] = loaded\n",
        "",
        f"{FILES}::test_metrics_that_a_task_imports_later_are_guarded_too",
    ),
    Mutant("own-metrics-forkserver", "pool/forkserver.py", "            boot.call(preparation)\n", "", POOLED),
    Mutant("own-metrics-spawned", "pool/worker.py", '            boot.call(told["preparation"])\n', "", POOLED),
    Mutant(
        "own-metrics-unguarded",
        "ops/observation.py",
        "return PREPARATION if self._metrics is not None else None",
        "return None",
        "unit/test_observation.py::test_it_serves_logs_notifies_and_leaves_nothing",
    ),
    Mutant(
        "tidy-goes-on",
        "ops/exposition.py",
        "            except Exception as error:\n                # Not even",
        "            except OSError as error:\n                # Not even",
        f"{TIDYING}::test_it_goes_on_whatever_one_look_has_met",
    ),
    Mutant(
        "tidy-other-files",
        "ops/collector.py",
        "                    failed = error\n",
        "                    raise\n",
        f"{TIDYING}::test_a_file_that_cannot_be_added_up_keeps_no_other_from_going",
    ),
    Mutant(
        "http-unread",
        "ops/http.py",
        "        writer.transport.set_write_buffer_limits(high=0)\n",
        "",
        "unit/test_http.py::test_what_a_client_does_not_read_keeps_no_descriptor",
    ),
    Mutant(
        "address-not-there-now",
        "ops/http.py",
        "            raise ResourceError(line) from None\n",
        "            raise UsageError(line) from None\n",
        "unit/test_http.py::test_f80_an_address_in_use_is_one_clear_line",
    ),
    Mutant(
        "address-never-there",
        "ops/http.py",
        "            if isinstance(error, (UnicodeError, PermissionError)):\n",
        "            if False:\n",
        "unit/test_http.py::test_only_what_may_pass_by_itself_is_worth_another_start",
    ),
    Mutant(
        "directory-not-there-now",
        "ops/directory.py",
        "        if error.errno in PASSING:\n",
        "        if False:\n",
        "pool/test_metrics_files.py::TestDirectory::test_a_place_that_has_no_room_now_may_be_tried_again",
    ),
    Mutant(
        "recorder-other-half",
        "pool/runner.py",
        "        if os.getpid() != self._pid:\n",
        "        if os.getpid() != self._pid and self._recorder is None:\n",
        "pool/test_metrics_pool.py::test_an_attempt_that_forked_and_returned_twice_is_timed_once",
    ),
    Mutant(
        "log-file-error",
        "ops/logwriter.py",
        "(error.errno == errno.EIO and self._terminal)",
        "error.errno == errno.EIO",
        f"{WRITER}::test_a_file_system_that_fails_once_costs_a_line_and_not_the_log",
    ),
    Mutant(
        "log-close-error",
        "ops/logwriter.py",
        "        with contextlib.suppress(OSError):\n            os.close(self._descriptor)\n",
        "        os.close(self._descriptor)\n",
        f"{WRITER}::test_a_file_system_that_fails_once_costs_a_line_and_not_the_log",
    ),
    Mutant(
        "log-terminal",
        "ops/logwriter.py",
        "(error.errno == errno.EIO and self._terminal)",
        "False",
        f"{WRITER}::test_a_terminal_that_has_hung_up_is_given_back",
    ),
    Mutant(
        "ready-unheard",
        "ops/notify.py",
        "        self._unheard = not heard\n",
        "",
        f"{NOTIFY}::test_that_it_is_ready_is_said_until_it_is_heard_or_untrue",
    ),
    Mutant(
        "ready-untrue",
        "ops/notify.py",
        '        self._unheard = False\n        return self._send("STOPPING=1", status)\n',
        '        return self._send("STOPPING=1", status)\n',
        f"{NOTIFY}::test_that_it_is_ready_is_said_until_it_is_heard_or_untrue",
    ),
    Mutant(
        "recorder-large-file",
        "ops/recorder.py",
        "            while self._store._used + MARGIN",
        "            if self._store._used + MARGIN",
        f"{RECORDER}::test_the_next_worker_reserves_more_before_it_comes_to_the_end_of_a_large_file",
    ),
    Mutant(
        "recorder-margin",
        "ops/recorder.py",
        "MARGIN = 40 * 1024",
        "MARGIN = 32 * 1024",
        f"{RECORDER}::test_a_task_type_with_the_longest_name_fits_into_what_is_reserved_for_it",
    ),
)
