"""Which columns of a change no transform reads, from Spark's own analysis."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.microbatch.late import CARRIER
from penstock.model.change import schema

# Plan nodes that select rows and compute columns: at most one row for each, in the same order.
# Plans with any other node (a join, an aggregate, `explode`) are not analysed.
_PLAIN = {"Project", "Filter", "SubqueryAlias", "View"}

# A column of nulls, which costs nothing where no statement reads it.
_EMPTY = {
    field.name: f"CAST(NULL AS {field.dataType.simpleString()}) AS {field.name}"
    for field in from_arrow_schema(schema())
} | {CARRIER: f"CAST(NULL AS bigint) AS {CARRIER}"}


def no_changes(spark: SparkSession) -> DataFrame:
    """The columns of a change and the carrier, and an empty row: what analysis needs."""
    return spark.sql(f"SELECT {', '.join(_EMPTY.values())}")


def with_unread(stubs: DataFrame) -> DataFrame:
    """All columns of a change and the carrier: statements may name what they do not read."""
    return stubs.selectExpr(
        *(name if name in stubs.columns else empty for name, empty in _EMPTY.items())
    )


def unread(source: DataFrame, made: DataFrame) -> frozenset[str]:
    """The columns of `source`, from `no_changes`, that the plan of `made` neither reads nor
    changes. None if it does more than select rows and compute columns, or cannot be analysed."""
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


def other_step(made: DataFrame) -> str:
    """What the plan of `made`, from `no_changes`, does besides its plain nodes; "" for nothing."""
    try:
        return _other(_plan(made))
    except Py4JError:
        return "a plan that cannot be analysed"


def _other(plan: Any) -> str:
    for step in _steps(plan):
        if step.nodeName() not in _PLAIN or step.children().size() != 1:
            return str(step.nodeName())
        if step.subqueriesAll().size():
            return "a subquery"
    return ""


def _steps(plan: Any) -> Iterator[Any]:
    """The nodes of a plan, from its end to its source or the first node with several sources."""
    children = list(_each(plan.children()))
    if [child.nodeName() for child in children] != ["OneRowRelation"]:
        yield plan
        yield from _steps(children[0]) if len(children) == 1 else ()


def _plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _read(plan: Any) -> set[int] | None:
    """Expression ids of the columns that a plan computes with; None for one with other nodes."""
    if _other(plan):
        return None
    return {
        each.exprId().id()
        for step in _steps(plan)
        for expression in _each(step.expressions())
        if expression.getClass().getSimpleName() != "AttributeReference"
        for each in _each(expression.references().toSeq())
    }


def _names(plan: Any) -> dict[int, str]:
    return {each.exprId().id(): each.name() for each in _each(plan.output())}


def _each(found: Any) -> Iterator[Any]:
    return (found.apply(i) for i in range(found.size()))
