"""A sync connection whose every call has a deadline, for commands: nobody waits for ever for a silent server.

psycopg has no such limit of its own. A call that is late has its socket shut down, like in ``connection``.
"""

from typing import Any

import psycopg

from pgsched.errors import DeadlineError
from pgsched.store.connection import cut_after


class BoundedConnection(psycopg.Connection[Any]):
    """Cuts itself when the server has been silent for ``deadline`` seconds; None for no limit."""

    deadline: float | None = None

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """What psycopg does to wait for the server.

        :raises DeadlineError: it did not answer in time; what it did is not known.
        """
        if self.deadline is None:
            return super().wait(*args, **kwargs)
        with cut_after(self, self.deadline) as late:
            try:
                return super().wait(*args, **kwargs)
            except psycopg.OperationalError:
                if late.is_set():
                    raise DeadlineError(
                        f"no answer from the database within {self.deadline:g} s, the limit that --db-timeout sets"
                    ) from None
                raise
