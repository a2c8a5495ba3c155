"""Every mutant still fits the source that it takes a guard out of; ``python -m tests.mutants`` runs them."""

import re

import pytest

from tests.mutants.mutant import Mutant, Redundant
from tests.mutants.table import MUTANTS, REDUNDANT
from tests.support import ROOT


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_it_fits_its_source(mutant: Mutant) -> None:
    assert mutant.fits() is None
    assert mutant.before != mutant.after


@pytest.mark.parametrize("guard", REDUNDANT)
def test_a_guard_that_has_none_is_still_there(guard: Redundant) -> None:
    assert (ROOT / "pgsched" / guard.path).read_text().count(guard.guard) == 1
    assert guard.reason


def test_one_that_does_not_is_told() -> None:
    assert "0 times" in str(Mutant("none", "model.py", "no such text", "", "").fits())
    assert "must be once" in str(Mutant("many", "model.py", "class ", "", "").fits())
    assert "No such file" in str(Mutant("lost", "no_such.py", "", "", "").fits())


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_its_tests_are_there(mutant: Mutant) -> None:
    for test in mutant.tests.split():
        path, *names = test.split("::")
        text = (ROOT / "tests" / path).read_text()
        for name in names:
            assert re.search(rf"\b(class|def) {name}\b", text), test
