"""All mutants, and the guards that have none."""

from typing import Final

from tests.mutants.code import CODE
from tests.mutants.commands import COMMANDS
from tests.mutants.database import DATABASE
from tests.mutants.duties import DUTIES
from tests.mutants.embedded import EMBEDDED
from tests.mutants.live import LIVE
from tests.mutants.mutant import Mutant, Redundant
from tests.mutants.observing import OBSERVING
from tests.mutants.service import SERVICE
from tests.mutants.statements import FUNCTIONS, STATEMENTS

MUTANTS: Final[dict[str, Mutant]] = {
    mutant.name: mutant
    for mutant in (
        *STATEMENTS,
        *FUNCTIONS,
        *DATABASE,
        *CODE,
        *DUTIES,
        *LIVE,
        *SERVICE,
        *COMMANDS,
        *EMBEDDED,
        *OBSERVING,
    )
}

REDUNDANT: Final = (
    Redundant(
        "store/sql/confirm.sql",
        "live.claimed_by = $1::bigint AND (live.status || '') = 'processing'",
        "keeps a row from being refreshed that changes hands between the statement's snapshot and its lock,"
        " where no test can hold it",
    ),
)
