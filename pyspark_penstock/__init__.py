"""Found by PySpark, which imports every package whose name starts with `pyspark_`."""

from penstock.spark.datasource import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
