"""Debian's Prometheus, if it is here: ``promtool``, and a server of a test's own on loopback."""

import contextlib
import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT, eventually

MONITORING = ROOT / "monitoring"
ALERTS = MONITORING / "alerts.yml"
DASHBOARD = MONITORING / "dashboard.json"
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (Debian: prometheus)"
)


def promtool(*arguments: str) -> tuple[bool, str]:
    """Whether it was content, and what it said."""
    ended = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60, check=False)
    return ended.returncode == 0, ended.stdout + ended.stderr


class Prometheus:
    """A running server."""

    def __init__(self, url: str) -> None:
        self._url = url

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer of the HTTP API.

        :raises AssertionError: it was refused; with what the server said.
        """
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{query}", timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression has now."""
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5):
                return True
        except OSError:
            return False


@contextlib.contextmanager
def prometheus(directory: Path, targets: Sequence[str], rules: str) -> Iterator[Prometheus]:
    """Start a server with our configuration and some rules, which scrapes every second, and end it after the body."""
    (directory / "targets").mkdir()
    (directory / "targets" / "pgsched.json").write_text(json.dumps([{"targets": list(targets)}]))
    (directory / "alerts.yml").write_text(rules)
    text = (MONITORING / "prometheus.yml").read_text()
    for interval in ("scrape_interval: 15s", "evaluation_interval: 15s"):
        assert interval in text
        text = text.replace(interval, f"{interval.split(':')[0]}: 1s")
    (directory / "prometheus.yml").write_text(text)
    log = directory / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            stdout=output,
            stderr=output,
        )
    try:
        listening = re.compile(r'msg="Listening on" address=(\S+)')
        eventually(lambda: listening.search(log.read_text()) or process.poll() is not None, timeout=30, every=0.05)
        found = listening.search(log.read_text())
        assert found is not None, log.read_text()
        server = Prometheus(f"http://{found[1]}")
        eventually(server.ready, "Prometheus is ready", timeout=30, every=0.05)
        yield server
    finally:
        process.kill()
        process.wait()
