"""The iterator's benchmark: every reader reads the whole stream."""

import pytest

from bench.iterate import Iteration, bloops_python, iterate

pytestmark = [pytest.mark.live]


def test_every_reader_reads_all_records() -> None:
    found = iterate(records=40)
    readers = {"penstock", "penstock, a model", "boto3"}
    if bloops_python() is not None:
        readers |= {"bloop", "bloop's coordinator"}
    assert set(found.cpu) == readers
    assert all(spent > 0 for spent in found.cpu.values())
    assert (found.ratio is None) == (bloops_python() is None)


def test_the_ratio_is_bloops_cpu_by_ours() -> None:
    cpu = {"penstock": 20.0, "bloop": 120.0}
    assert Iteration(records=1, bytes_each=1, cpu=cpu).ratio == 6.0
