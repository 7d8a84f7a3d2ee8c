"""`penstock gaps`: what was lost, and that it is mended."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock import cli
from penstock.leases.gaps import Gaps
from penstock.leases.sqlite import SqliteStore

SHARD = "2026-11-24T10:35:31.380/shardId-00000001795516531392-3bc48f48"


def gaps(file: Path, *more: str) -> Result:
    return CliRunner().invoke(cli.main, ["gaps", str(file), *more])


def lose(file: Path, partition: str) -> None:
    Gaps(SqliteStore(file.parent / "positions.db"), "shop/aws").record(
        partition,
        {"id": "1", "cause": "trimmed", "policy": "fail", "from": "7:0", "to": "", "at": "T"},
    )


def test_nothing_was_lost(file: Path) -> None:
    assert gaps(file).output == "nothing was ever lost\n"


@pytest.mark.slow
def test_the_name_to_mend_is_never_cut(file: Path) -> None:
    lose(file, SHARD)
    head, line = gaps(file).output.splitlines()
    assert head.split() == ["backend", "partition", "stale", "cause", "after", "until", "at"]
    assert line.split() == ["aws", SHARD, "yes", "trimmed", "7:0", "unknown", "T"]
    mended = gaps(file, "mend", f"aws/{SHARD}")
    assert mended.exit_code == 0
    assert "no" in mended.output.splitlines()[1].split()


def test_another_partition_has_no_gaps(file: Path) -> None:
    lose(file, SHARD)
    found = gaps(file, "mend", "aws/shard")
    assert found.exit_code == 2
    assert "aws/shard has no gaps" in found.output
    assert SHARD in found.output
