"""How long a supervisor believes in its lease."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsched.config import MAX_LEASE, MIN_LEASE
from pgsched.rules.lease import Trust, margin

leases = st.floats(MIN_LEASE, MAX_LEASE)


@pytest.mark.parametrize(("lease", "seconds"), [(2, 0.5), (4, 1.0), (10, 1.0), (15, 1.5), (120, 12.0)])
def test_margin(lease: float, seconds: float) -> None:
    assert margin(lease) == seconds


def test_nothing_is_trusted_before_the_first_renewal() -> None:
    trust = Trust(15.0)
    assert not trust.trusted(0.0)
    assert trust.renew_due(0.0) < 0


def test_a_slow_reply_does_not_stretch_the_lease() -> None:
    trust = Trust(15.0, started=100.0)
    trust.renewed(started=105.0)  # answered at 118
    assert trust.expires_at == 118.5
    assert trust.trusted(118.4)
    assert not trust.trusted(118.5)


def test_renewal_is_due_after_a_third() -> None:
    trust = Trust(15.0, started=100.0)
    assert trust.renew_due(103.0) == 2.0
    assert trust.renew_due(105.0) == 0.0


def test_answers_out_of_order_do_not_shorten_trust() -> None:
    trust = Trust(15.0, started=100.0)
    trust.renewed(110.0)
    trust.renewed(105.0)
    assert trust.expires_at == 123.5


@given(lease=leases, started=st.floats(0, 1e7))
def test_trust_ends_before_the_lease_and_leaves_time_for_two_attempts_to_renew(lease: float, started: float) -> None:
    trust = Trust(lease, started)
    assert trust.expires_at < started + lease - 0.4
    assert trust.expires_at > trust.renew_at + lease / 3
    assert trust.trusted(started)
