"""Fixtures for the tests of the store."""

import pytest

from tests.store.desk import Bound


@pytest.fixture(params=[(), (0,)], ids=["all", "bound"])
def bound(request: pytest.FixtureRequest) -> Bound:
    """What a supervisor is bound to: other statements claim and settle for it. One table is the partition 0."""
    partitions: Bound = request.param
    return partitions
