"""Spark glue: the only place that imports pyspark. Adapters delegate and take no decisions.

The way of a page: `reservoir` (planner process, I/O thread) -> `planner` -> `outlet` -> `inlet` ->
`task` (decodes, writes to a sink); or, as rows, `planner` -> `split` -> `task` -> the user's
DataFrame -> `task`. `source` and `datasource` are what Spark calls. `session` is the Spark that
`penstock run` makes, `service` what runs there.
"""

from penstock.spark.datasource import PenstockDataSource, register

__all__ = ["PenstockDataSource", "register"]
