"""The task types that the scenarios run."""

from pgsched import App

app = App()


@app.task
def noop() -> None:
    """Do nothing: what is left is the cost of pgsched."""
