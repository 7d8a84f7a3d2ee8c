"""penstock inside your own Spark job: a change feed as a DataFrame, filtered, into JetStream.

    PG_URL=postgresql://postgres@127.0.0.1:5432/shop NATS_URL=nats://127.0.0.1:4222 \
        python examples/library.py

Needs a publication `shop` in the database; the slot `example` and the stream `EXAMPLE` are made.
Offsets are in Spark's own checkpoint: run it again and it goes on where it was. `penstock demo
--keep` leaves such servers up and prints their addresses.
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from penstock import register


def main(checkpoint: str, seconds: int | None) -> None:
    # Workers must run the Python that has penstock.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.appName("example")
        .master("local[2]")
        # Not needed, but 40 ms a trigger faster.
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    register(spark)

    changes = (
        spark.readStream.format("penstock")
        .option("backend", "postgres")
        .option("connection", os.environ["PG_URL"])
        .option("slot", "example")
        .option("publication", os.environ.get("PUBLICATION", "shop"))
        .load()
    )

    # Any DataFrame operation that keeps the rows in order and the columns of a change.
    wanted = changes.where(f.col("operation") != "DELETE").withColumn(
        "tenant", f.get_json_object("after", "$.country")
    )

    query = (
        wanted.writeStream.format("penstock")
        .option("sink", "jetstream")
        .option("url", os.environ["NATS_URL"])
        .option("stream", "EXAMPLE")
        .option("subject", "example.{collection}.{operation}")
        .option("encoding", "json")
        .option("checkpointLocation", checkpoint)
        .start()
    )
    query.awaitTermination(seconds)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(
        checkpoint=os.environ.get("CHECKPOINT", "example-checkpoint"),
        seconds=int(os.environ["SECONDS_TO_RUN"]) if "SECONDS_TO_RUN" in os.environ else None,
    )
