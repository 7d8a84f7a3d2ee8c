"""Spark glue: the only place that imports pyspark. Adapters delegate and take no decisions.

`datasource` is what Spark calls: `penstock.reading` in the reader process, `penstock.microbatch` in
its tasks. `session` is the Spark that `penstock run` starts, `queries` what runs there. Names are
imported when they are used: modules of `session` without PySpark start fast.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.datasource import PenstockDataSource, register

__all__ = ["PenstockDataSource", "register"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from penstock.spark import datasource

    return getattr(datasource, name)
