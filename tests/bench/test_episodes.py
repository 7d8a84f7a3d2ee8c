from bench.episodes import Episode, episodes
from bench.stream import Times


def test_slow_changes_that_are_close_are_one_episode() -> None:
    found = [
        Times(at=1.0, captured=2.0, stored=24.9),
        Times(at=9.5, captured=31.0, stored=33.0),
        Times(at=2.0, captured=1.0, stored=25.0),
        Times(at=2.9, captured=4.0, stored=60.0),
        Times(at=3.8, captured=20.0, stored=30.0),
    ]
    assert list(episodes(found)) == [
        Episode(2.0, 3.8, 3, 60.0, 20.0),
        Episode(9.5, 9.5, 1, 33.0, 31.0),
    ]


def test_a_calm_run_has_none() -> None:
    assert not episodes([Times(at=float(n), captured=1.0, stored=3.0) for n in range(5)])
