"""An app whose module makes metrics of its own at import, as users' modules do."""

import os
import signal

from prometheus_client import Counter, Gauge

from pgsched.app import App

app = App()
parcels = Counter("parcels", "Parcels sent.", ["size"])
loaded = Gauge("loaded", "What a worker has loaded.", multiprocess_mode="livesum")


@app.task
def send(size: str) -> None:
    parcels.labels(size).inc()


@app.task
def load(size: int) -> None:
    loaded.set(size)


@app.task
def fail() -> None:
    raise ValueError("no")


@app.task
def crash() -> None:
    parcels.labels("lost").inc()
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
def hang() -> None:
    while True:
        signal.pause()


@app.task
def deaf() -> None:
    while True:
        try:
            while True:
                signal.pause()
        except BaseException:
            continue
