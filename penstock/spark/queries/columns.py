"""Which columns of a change the transforms do without, by Spark's own analysis."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.change import schema
from penstock.tasks.late.side_files import CARRIER

__all__ = ["no_changes", "unread", "with_unread"]

# What chooses rows and makes columns: one row at most of each, and in their order. Nothing else (a
# join, an aggregate, `explode`) is looked into.
_PLAIN = {"Project", "Filter", "SubqueryAlias", "View"}

# A column with nothing in it, which costs nothing where nobody reads it.
_EMPTY = {
    field.name: f"CAST(NULL AS {field.dataType.simpleString()}) AS {field.name}"
    for field in from_arrow_schema(schema())
} | {CARRIER: f"CAST(NULL AS bigint) AS {CARRIER}"}


def no_changes(spark: SparkSession) -> DataFrame:
    """The columns of a change and the carrier, and an empty row: what analysis needs."""
    return spark.sql(f"SELECT {', '.join(_EMPTY.values())}")


def with_unread(stubs: DataFrame) -> DataFrame:
    """All columns of a change and the carrier, for statements that name columns which they do not
    read."""
    return stubs.selectExpr(
        *(name if name in stubs.columns else empty for name, empty in _EMPTY.items())
    )


def unread(source: DataFrame, made: DataFrame) -> frozenset[str]:
    """The columns of `source`, from `no_changes`, that are not read where `made` is made of it,
    and that come out as they went in; none, if more is done than to choose rows and to make
    columns, or if Spark can't say."""
    try:
        numbers = _names(_plan(source))
        names = _names(_plan(made))
        read = _read(_plan(made))
    except Py4JError:
        return frozenset()
    if read is None:
        return frozenset()
    count = Counter(names.values())
    return frozenset(
        name
        for number, name in names.items()
        if numbers.get(number) == name and number not in read and count[name] == 1
    )


def _plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _read(plan: Any) -> set[int] | None:
    """The columns that a plan computes with, by their numbers; None if it does what is not looked
    into."""
    read: set[int] = set()
    while True:
        children = list(_each(plan.children()))
        if [child.nodeName() for child in children] == ["OneRowRelation"]:
            return read  # the source
        if plan.nodeName() not in _PLAIN or len(children) != 1 or plan.subqueriesAll().size():
            return None
        for expression in _each(plan.expressions()):
            if expression.getClass().getSimpleName() != "AttributeReference":
                read |= {each.exprId().id() for each in _each(expression.references().toSeq())}
        (plan,) = children


def _names(plan: Any) -> dict[int, str]:
    """What comes out of a plan: the number that Spark gave it, and its name."""
    return {each.exprId().id(): each.name() for each in _each(plan.output())}


def _each(found: Any) -> Iterator[Any]:
    return (found.apply(i) for i in range(found.size()))
