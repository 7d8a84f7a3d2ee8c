"""The rate of chunks, by a scripted clock."""

from penstock.snapshots.writing import SnapshotPace


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_bytes_are_let_through_at_the_rate() -> None:
    clock = Clock()
    pace = SnapshotPace(1000, clock=lambda: clock.now, sleep=clock.sleep)
    passed = []
    for _ in range(4):
        pace.wait(500, lambda: False)
        passed.append(round(clock.now, 6))
    assert passed == [100.0, 100.5, 101.0, 101.5]


def test_time_without_chunks_is_not_saved_up() -> None:
    clock = Clock()
    pace = SnapshotPace(1000, clock=lambda: clock.now, sleep=clock.sleep)
    pace.wait(500, lambda: False)
    clock.now += 60
    for _ in range(2):
        pace.wait(1000, lambda: False)
    assert round(clock.now, 6) == 161.0


def test_what_is_over_does_not_wait_and_without_a_rate_nothing_does() -> None:
    clock = Clock()
    pace = SnapshotPace(1, clock=lambda: clock.now, sleep=clock.sleep)
    pace.wait(500, lambda: True)
    pace.wait(500, lambda: True)
    SnapshotPace(None, sleep=clock.sleep).wait(10**9, lambda: False)
    assert clock.now == 100.0
