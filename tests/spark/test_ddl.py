"""DDL text is read as Spark reads it."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.typed.ddl import schema_of_ddl

pytestmark = pytest.mark.spark

TEXT = (
    "a BOOLEAN, b TINYINT, c byte, d SMALLINT, e SHORT, f INT, g integer, h BIGINT, i LONG,"
    " j FLOAT, k REAL, l DOUBLE, m DATE, n TIMESTAMP, o TIMESTAMP_NTZ, p BINARY, q STRING,"
    " r DECIMAL, s DECIMAL(5), t numeric(12, 2), u: STRING,"
    " `x ``y` INT COMMENT 'it\\'s', y INT NOT NULL, z ARRAY<ARRAY<INT>>,"
    " aa MAP<STRING, ARRAY<INT>>,"
    " bb STRUCT<c: INT, d STRING COMMENT 'x', `e f`: STRUCT<g: DATE>>"
)


def test_a_schema_is_as_spark_reads_it(spark: SparkSession) -> None:
    want = to_arrow_schema(StructType.fromDDL(TEXT), timezone="UTC")
    assert schema_of_ddl(TEXT).equals(want)
