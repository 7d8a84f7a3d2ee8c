"""The benchmark of Delta tables: both ways come to the same tables."""

from pathlib import Path

from bench.delta import Committed, delta


def test_each_way_writes_all_changes(tmp_path: Path) -> None:
    found = delta(tmp_path, rows=500)
    assert [(one.what, one.rows, one.changes) for one in found] == [
        ("log: inserts", 0, 500),
        ("clone: inserts", 0, 500),
        ("clone: updates", 500, 100),
    ]
    assert all(min(one.rate, one.plain, one.cpu, one.plain_cpu) > 0 for one in found)


def test_the_ratio_is_our_rate_by_the_plain_one() -> None:
    one = Committed(what="", rows=0, changes=1, rate=30.0, plain=60.0, cpu=1.0, plain_cpu=1.0)
    assert one.ratio == 0.5
