"""When a shard may be read again, by a clock of the test."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.feeds.dynamodb.walk import TO_THE_TIP, ShardPace, Tip


@given(st.lists(st.tuples(st.floats(0, 0.3), st.integers(1, 5)), max_size=60), st.integers(1, 5))
def test_no_second_has_more_reads_than_allowed(steps: list[tuple[float, int]], most: int) -> None:
    """Also where others have another limit: none makes the calls of before forgotten."""
    pace, now, made = ShardPace(), 0.0, []
    for wait, setting in steps:
        now += wait
        reads = min(most, setting)
        if pace.due(reads) <= now:
            assert sum(each > now - 1 + 1e-9 for each in made) < reads
            pace.reads(now)
            pace.answered()
            made.append(now)
    assert all(last - first > 1 - 1e-9 for first, last in zip(made, made[most:], strict=False))


def test_the_tip_is_assumed_after_five_empty_pages_of_one_walk() -> None:
    tip = Tip()
    for count in (0, 0, 3, 0, 0):
        tip = tip.found(count, 1.0, 0.5)
        assert tip.not_before == 0
        assert tip.is_sought
    tip = tip.found(0, 1.0, 0.5)
    assert not tip.is_sought
    assert tip.not_before == 1.5
    assert tip.found(2, 2.0, 0.5).not_before == 0
    assert Tip().is_sought
    assert TO_THE_TIP == 5


def test_throttling_waits_longer_each_time_until_a_call_succeeds() -> None:
    pace, waits = ShardPace(), []
    for _ in range(6):
        pace.throttled(0.0)
        waits.append(pace.due(5))
        assert pace.is_throttled
    assert 0.25 <= waits[0] <= 0.5
    assert 2 <= waits[-1] <= 10
    pace.answered()
    assert not pace.is_throttled
    assert pace.due(5) == 0
    pace.throttled(100.0)
    assert pace.due(5) <= 100.5
