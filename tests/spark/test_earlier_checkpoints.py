"""A checkpoint that an earlier version wrote is gone on with.

`checkpoint_of_9915a53e` is of 300 changes of two partitions each (`source` of this module), without
the settings of the session that Spark keeps there.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.test_datasource import events
from tests.spark.test_datasource import source as made_up

pytestmark = pytest.mark.spark

EARLIER = Path(__file__).with_name("checkpoint_of_9915a53e")
# Where its last two micro-batches ended, in both partitions.
THIRD, LAST = "000000000025:5", "000000000029:9"

Places = list[tuple[str, str, int]]


def source(spark: SparkSession) -> DataFrame:
    return made_up(spark, changes=500, page=64, max_events=128, partitions=2)


def run(frame: DataFrame, folder: Path, checkpoint: Path, trigger: dict[str, Any]) -> Places:
    writer = frame.writeStream.format("penstock").options(sink="memory", folder=str(folder))
    writer = writer.option("checkpointLocation", str(checkpoint))
    query = writer.trigger(**trigger).start()
    try:
        while query.isActive and not query.awaitTermination(1):
            if "availableNow" not in trigger and len(events(folder)) >= 400:
                break
        assert (error := query.exception()) is None, error
    finally:
        query.stop()
    rows = events(folder)
    return sorted((row["partition"], row["cursor"], row["ordinal"]) for row in rows)


def after(places: Places, end: str) -> Places:
    cursor, _, ordinal = end.partition(":")
    return [
        (name, at, number)
        for name, at, number in places
        if (at, number) > (f"{name}-{cursor}", int(ordinal))
    ]


@pytest.mark.parametrize(
    "trigger", [{"availableNow": True}, {"processingTime": "0 seconds"}], ids=str
)
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "planned"])
def test_it_goes_on(
    spark: SparkSession, tmp_path: Path, trigger: dict[str, Any], committed: bool
) -> None:
    checkpoint = tmp_path / "earlier"
    shutil.copytree(EARLIER, checkpoint)
    if not committed:  # the driver ended before the last micro-batch was committed
        (checkpoint / "commits" / "4").unlink()
    every = run(source(spark), tmp_path / "all", tmp_path / "new", {"availableNow": True})
    assert len(every) == 1_000
    rest = run(source(spark), tmp_path / "rest", checkpoint, trigger)
    assert rest == after(every, LAST if committed else THIRD)
    assert len(rest) == (400 if committed else 488)
