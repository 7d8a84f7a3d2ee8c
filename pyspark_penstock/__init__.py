"""Found by PySpark, which imports every package whose name starts with `pyspark_`.

An import that fails here would end every look-up of a Python data source, also of others: with a
Spark that is too old, `DefaultSource` fails when it is used.
"""

from typing import Any

from penstock.model.errors import SettingsError

try:
    from penstock.spark.datasource import PenstockDataSource as DefaultSource
except SettingsError as error:
    from pyspark.sql.datasource import DataSource

    refusal = error

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """Of a Spark that is too old."""

        @classmethod
        def name(cls) -> str:
            return "penstock"

        def __init__(self, options: Any) -> None:
            raise refusal


__all__ = ["DefaultSource"]
