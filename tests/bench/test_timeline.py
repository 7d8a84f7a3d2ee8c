"""When a drain stood still: samples -> shares."""

from collections.abc import Sequence

import pytest

from bench.timeline import Sample, Timeline, relative, stood_still
from tests.servers import Database, Nats


def curves(*rows: tuple[int, int]) -> Sequence[Sample]:
    """Samples a second apart: (bytes sent, messages stored)."""
    return [Sample(float(at), sent, stored) for at, (sent, stored) in enumerate(rows)]


def shares(*rows: tuple[int, int]) -> tuple[float, float, float, float]:
    still = stood_still(curves(*rows), begin=1000, end=1100)
    return still.reading, still.writing, still.either, still.neither


def test_a_drain_that_moves_at_both_ends_never_stood_still() -> None:
    assert shares((1020, 1), (1040, 30), (1060, 50), (1100, 90), (1100, 100)) == (0, 0, 0, 0)


def test_taking_turns_counts_each_standstill() -> None:
    rows = (1040, 1), (1080, 1), (1080, 40), (1080, 70), (1100, 70), (1100, 100)
    # reading waits from 1 to 3, writing from 0 to 1 and from 3 to 4
    assert shares(*rows) == pytest.approx((2 / 5, 2 / 5, 4 / 5, 0))


def test_a_time_in_which_nothing_moves_counts_once() -> None:
    assert shares((1040, 1), (1040, 1), (1100, 100)) == pytest.approx((0.5, 0.5, 0.5, 0.5))


def test_what_has_no_work_left_does_not_stand_still() -> None:
    # All is sent, and later: all that was sent is stored.
    assert shares((1100, 1), (1100, 50), (1100, 100)) == (0, 0, 0, 0)
    assert shares((1050, 50), (1075, 50), (1100, 100)) == (0, 0, 0, 0)


def test_only_the_time_from_the_first_message_to_the_last_counts() -> None:
    rows = (1000, 0), (1000, 0), (1050, 0), (1050, 1), (1100, 100), (1100, 100), (1100, 100)
    still = stood_still(curves(*rows), begin=1000, end=1100)
    assert (still.seconds, still.either) == (1.0, 0.0)


def test_samples_count_by_their_distance() -> None:
    samples = [Sample(0.0, 1010, 1), Sample(0.1, 1010, 20), Sample(0.4, 1100, 100)]
    assert stood_still(samples, begin=1000, end=1100).reading == pytest.approx(0.25)


def test_no_samples_are_no_standstill() -> None:
    assert stood_still([], begin=0, end=1).either == 0.0


def test_curves_are_shown_from_zero() -> None:
    samples = [Sample(7.0, 1010, 1), Sample(7.5, 1100, 3)]
    assert relative(samples, 1000) == [Sample(0.0, 10, 1), Sample(0.5, 100, 3)]


def test_a_slot_that_nobody_reads_gives_no_samples(database: Database, nats: Nats) -> None:
    with Timeline(pg_url=database.url, slot="none", nats_url=nats.url, stream="NONE") as timeline:
        pass
    assert timeline.samples == []
