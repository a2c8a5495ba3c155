"""More guards of the store: commands, migrations, connections, what is shown of secrets."""

from typing import Final

from tests.mutants.mutant import Mutant

DATABASE: Final = (
    Mutant(
        "deregister-prolongs-none",
        "store/sql/deregister.sql",
        "least(me.lease_until, clock_timestamp())",
        "clock_timestamp()",
        "store/test_lease.py::test_leaving_prolongs_no_lease",
    ),
    Mutant(
        "surrender-later",
        "store/sql/surrender.sql",
        "supervisor.lease_until < excluded.lease_until\n  AND ",
        "",
        "store/test_lease.py::test_what_we_touched_until_the_very_end_of_our_lease_is_given_up",
    ),
    Mutant(
        "ownerless-own-lock",
        "store/sql/reap_ownerless.sql",
        "AND lease_until > clock_timestamp() FOR KEY SHARE",
        "AND lease_until > clock_timestamp()",
        "store/test_races.py::TestReapAgainstReap::test_nor_is_one_that_takes_what_nobody_owns",
    ),
    Mutant(
        "depth-skip",
        "store/sql/depth.sql",
        "FOR NO KEY UPDATE SKIP LOCKED",
        "FOR NO KEY UPDATE",
        "store/test_lease.py::test_counting_waits_for_nobody",
    ),
)
