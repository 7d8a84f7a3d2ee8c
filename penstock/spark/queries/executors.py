"""The cluster's executors: how many tasks they run at a time, and where they reach the driver."""

from collections.abc import Callable

from pyspark.sql import SparkSession

from penstock.config import Spark
from penstock.microbatch.options import Listening
from penstock.spark.session.master import is_local


def counting(spark: SparkSession) -> Callable[[], int]:
    """A function that asks Spark how many tasks may run at a time now: 0 before the first executor
    has registered, -1 when Spark was stopped: a cluster's master may end an application.

    (`defaultParallelism` is 2 without executors, and ignores `spark.task.cpus`.)
    """
    context = spark.sparkContext._jsc.sc()
    profile = context.resourceProfileManager().defaultResourceProfile()
    return lambda: -1 if context.isStopped() else int(context.maxNumConcurrentTasks(profile))


def listening(spark: SparkSession, settings: Spark) -> Listening | None:
    """Where executors reach the first of penstock's own servers: the driver's host, and the first
    of their ports. None where tasks run in the driver's JVM."""
    context = spark.sparkContext
    if is_local(str(context.master)):
        return None
    conf = context.getConf()
    return Listening(
        host=conf.get("spark.driver.host", "") or "",
        bind=settings.bind or conf.get("spark.driver.bindAddress", "") or "",
        port=settings.port,
    )
