"""The plan is a pure function of seed and duration, and has everything in it that a storm is for."""

import subprocess
import sys
from itertools import pairwise

import pytest

from tests.chaos import terms
from tests.chaos.plan import NO_SEAT, SEATS, SETTLING, Harm, Kind, draw
from tests.support import ROOT

LEASE = 5.0


def test_the_same_seed_gives_the_same_plan() -> None:
    assert draw(7, 120.0, LEASE) == draw(7, 120.0, LEASE)
    assert draw(7, 120.0, LEASE) != draw(8, 120.0, LEASE)


def test_another_process_draws_the_same_plan() -> None:
    """Nothing in it comes from a set's order or a hash, which differ from one process to the next."""
    code = f"from tests.chaos.plan import draw; print(draw(7, 120.0, {LEASE}))"
    printed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert printed.stdout.strip() == str(draw(7, 120.0, LEASE))


@pytest.mark.parametrize("seed", range(20))
def test_faults_of_a_lane_do_not_overlap_and_end_with_the_storm(seed: int) -> None:
    plan = draw(seed, 240.0, LEASE)
    assert list(plan.faults) == sorted(plan.faults)
    assert all(fault.at > SETTLING and fault.at + fault.seconds <= plan.seconds for fault in plan.faults)
    assert {fault.seat for fault in plan.faults} == {NO_SEAT, *range(SEATS)}
    lines = (Harm.REFUSE, Harm.REJECT, Harm.SILENCE, Harm.CUT, Harm.SWALLOW, Harm.DELAY)
    for seat in range(SEATS):
        on_line = [fault for fault in plan.faults if fault.seat == seat and fault.harm in lines]
        for one, next_one in pairwise(on_line):
            assert one.at + one.seconds <= next_one.at


def test_a_plan_of_four_minutes_has_every_harm_and_every_kind_of_task() -> None:
    plan = draw(3, 240.0, LEASE)
    assert {fault.harm for fault in plan.faults} == set(Harm)
    assert {order.kind for order in plan.orders} == set(Kind)
    assert len({order.queue for order in plan.orders}) > 1
    assert len({order.priority for order in plan.orders}) > 1
    assert any(order.delay > LEASE for order in plan.orders)
    assert any(order.cancel_after is not None for order in plan.orders)
    assert len([order.key for order in plan.orders if order.key]) > len({o.key for o in plan.orders if o.key})
    stops = [fault.seconds for fault in plan.faults if fault.harm is Harm.STOP_SUPERVISOR]
    assert min(stops) < LEASE < max(stops)


def test_harms_can_be_chosen() -> None:
    plan = draw(3, 60.0, LEASE, only=[Harm.DELAY])
    assert {fault.harm for fault in plan.faults} == {Harm.DELAY}
    assert plan.orders == draw(3, 60.0, LEASE).orders


@pytest.mark.parametrize("seed", range(20))
def test_every_partition_is_served_whoever_is_missing_but_one(seed: int) -> None:
    drawn = draw(seed, 10.0, LEASE).terms
    assert len(drawn.seats) == SEATS
    assert any(not seat.partitions for seat in drawn.seats)
    assert all(set(seat.partitions) < set(range(drawn.partitions)) for seat in drawn.seats)


def test_storms_differ_in_their_terms_and_so_do_the_supervisors_of_one() -> None:
    drawn = [draw(seed, 10.0, LEASE).terms for seed in range(50)]
    assert {each.partitions for each in drawn} == {1, terms.PARTITIONS}
    seats = [seat for each in drawn for seat in each.seats]
    assert {seat.kept for seat in seats} == {None, terms.SOON, terms.SOMETIME, terms.RANGES}
    assert {seat.pooled for seat in seats} == {True, False}
    assert any(len(set(each.seats)) == SEATS for each in drawn)
    options = {option for seat in seats for option in seat.arguments() if option.startswith("--")}
    assert options == {"--partitions", "--prune-older-than", "--pooled"}


def test_what_is_kept_is_kept_by_all() -> None:
    assert terms.plain(SEATS).kept is None
    seats = (terms.SeatTerms(kept=terms.RANGES), terms.SeatTerms(kept=terms.SOON), terms.SeatTerms())
    assert terms.Terms(1, seats).kept == terms.SOON
