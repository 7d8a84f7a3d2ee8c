"""Spark glue: the only place that imports pyspark. Adapters delegate and take no decisions.

The way of a page: `reservoir` (planner process, I/O thread) -> `planner` (offsets, splits) ->
`split` (crosses to the task) -> `reader` (decodes, or passes packed pages on) -> the user's
DataFrame -> `writer` (decodes packed pages) -> a Sink. `service` runs it all as one process.
"""

from penstock.spark.datasource import PenstockDataSource, register

__all__ = ["PenstockDataSource", "register"]
