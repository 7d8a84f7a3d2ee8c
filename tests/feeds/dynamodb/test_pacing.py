"""When a shard may be read again, by a clock of the test."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.feeds.dynamodb.pacing import TO_THE_TIP, ShardPace


@given(st.lists(st.tuples(st.floats(0, 0.3), st.integers(0, 2)), max_size=60), st.integers(1, 5))
def test_no_second_has_more_reads_than_allowed(steps: list[tuple[float, int]], reads: int) -> None:
    pace, now, made = ShardPace(reads, 0.05), 0.0, []
    for wait, count in steps:
        now += wait
        if pace.due() <= now:
            pace.reads(now)
            made.append(now)
            pace.found(count, now)
    assert all(last - first > 1 - 1e-9 for first, last in zip(made, made[reads:], strict=False))


def test_the_tip_is_assumed_after_five_empty_pages_of_one_walk() -> None:
    pace = ShardPace(1000, 0.5)
    for count in (0, 0, 3, 0, 0):
        pace.found(count, 1.0)
        assert pace.due() <= 1.0
        assert pace.seeks_the_tip
    pace.found(0, 1.0)
    assert not pace.seeks_the_tip
    assert pace.due() == 1.5
    pace.found(2, 2.0)
    assert pace.due() <= 2.0
    pace.walks()
    assert pace.seeks_the_tip
    assert TO_THE_TIP == 5


def test_throttling_waits_longer_each_time_until_a_call_succeeds() -> None:
    pace, waits = ShardPace(5, 0.1), []
    for _ in range(6):
        pace.throttled(0.0)
        waits.append(pace.due())
        assert pace.is_throttled
    assert 0.25 <= waits[0] <= 0.5
    assert 2 <= waits[-1] <= 10
    pace.found(1, 100.0)
    pace.throttled(100.0)
    assert pace.due() <= 100.5
