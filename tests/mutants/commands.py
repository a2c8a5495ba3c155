"""The guards of what a user types, and of what is served and logged."""

from typing import Final

from tests.mutants.mutant import Mutant

COMMANDS: Final = (
    Mutant(
        "http-health-fails",
        "ops/http.py",
        "        except Exception as error:\n            healthy, line",
        "        except ZeroDivisionError as error:\n            healthy, line",
        "unit/test_http.py::test_a_health_check_that_fails_is_not_healthy",
    ),
    Mutant(
        "http-head",
        "ops/http.py",
        '(b"" if silent else body)',
        "body",
        "unit/test_http.py::test_head_is_get_without_the_body",
    ),
    Mutant(
        "http-linger",
        "ops/http.py",
        "        await _linger(reader)\n",
        "",
        "unit/test_http.py::test_a_refused_body_does_not_cost_the_answer",
    ),
    Mutant(
        "http-close",
        "ops/http.py",
        "            connection.cancel()\n",
        "            pass\n",
        "unit/test_http.py::test_closing_ends_open_connections_and_frees_the_port",
    ),
    Mutant(
        "throttle-kinds",
        "ops/throttle.py",
        "            if len(self._buckets) >= KINDS:\n                del self._buckets[next(iter(self._buckets))]\n",
        "",
        "unit/test_logs.py::TestThrottle::test_the_number_of_kinds_is_bounded",
    ),
    Mutant(
        "logs-capacity",
        "ops/logwriter.py",
        "if self._lines.qsize() >= self._capacity:",
        "if False:",
        "unit/test_logs.py::TestWriter::test_f13_a_full_pipe_delays_nobody_and_the_loss_is_told",
    ),
    Mutant(
        "logs-close",
        "ops/logwriter.py",
        "self._thread.join(timeout)",
        "self._thread.join()",
        "unit/test_logs.py::TestWriter::test_closing_does_not_wait_for_a_reader_that_does_not_read",
    ),
    Mutant(
        "notify-nonblocking",
        "ops/notify.py",
        " | socket.SOCK_NONBLOCK",
        "",
        "unit/test_notify.py::test_a_manager_that_does_not_read_is_not_waited_for",
    ),
    Mutant(
        "notify-environment",
        "ops/notify.py",
        'environ.pop("NOTIFY_SOCKET", "")',
        'environ.get("NOTIFY_SOCKET", "")',
        "unit/test_notify.py::test_what_systemd_said_is_not_handed_to_workers",
    ),
    Mutant(
        "notify-watchdog-pid",
        "ops/notify.py",
        "    if pid and pid != str(os.getpid()):\n        return None\n",
        "",
        "unit/test_notify.py::test_a_watchdog_that_is_not_meant_for_us_is_ignored",
    ),
    Mutant(
        "wheel-none",
        "ops/throttle.py",
        "if bucket.tokens < 1.0:",
        "if bucket.tokens < 0.0:",
        "unit/test_logs.py::TestThrottle::test_the_first_ones_pass_then_a_steady_rate",
    ),
    Mutant(
        "cli-say-which",
        "cli/change.py",
        "    if not (ids or typed or everything):\n",
        "    if False:\n",
        "system/test_cli_commands.py::TestCancel::test_something_must_be_typed",
    ),
    Mutant(
        "cli-typed",
        "cli/change.py",
        " if source(name) is ParameterSource.COMMANDLINE]",
        " if source(name) is not ParameterSource.DEFAULT]",
        "system/test_cli_commands.py::TestCancel::test_something_must_be_typed",
    ),
    Mutant(
        "cli-all-alone",
        "cli/change.py",
        "    if everything and (ids or typed):",
        "    if False:",
        "system/test_cli_commands.py::TestCancel::test_something_must_be_typed",
    ),
)
