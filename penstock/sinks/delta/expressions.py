"""The map's `filter` and `set`: SQL of DataFusion, by delta-rs, over rows of a source."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from tempfile import TemporaryDirectory

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from penstock.model.errors import Rejected, SettingsError
from penstock.sinks.delta.lake import error_text, quoted, translated
from penstock.sinks.delta.rows import GONE
from penstock.tables.fold import LINES
from penstock.tables.lines import LineChange, SourceRelation
from penstock.tables.staged import SENDS_ALL, RowMapping, UnsentValue, mentions

# The number of a row. Where there are expressions, no column of a source is called so.
_PLACE = "_place"
# Names are as they are written, as in other SQL of delta-rs.
_SETTINGS = ("datafusion.execution.time_zone = 'UTC'",
             "datafusion.sql_parser.enable_ident_normalization = false")  # fmt: skip
# A DELETE of a log has some of its columns, and a TRUNCATE none: null decides nothing there.
OF_LOG = "CASE WHEN _operation IN ('DELETE', 'TRUNCATE', 'DROP') THEN {0} IS NOT FALSE ELSE {0} END"


def _session() -> QueryBuilder:
    found = QueryBuilder()  # not by its argument, which versions before September 2026 lack
    for each in _SETTINGS:
        found.execute(f"SET {each}").read_all()
    return found


def query(statement: str) -> pa.Table:
    """The result of a query that reads no table. Raises SettingsError."""
    try:
        return pa.table(_session().execute(statement).read_all())
    except Exception as error:
        raise SettingsError(error_text(error), "tables.expression") from error


def computed(
    rows: pa.Table, own: Mapping[str, str], values: Mapping[str, str], where: str
) -> pa.Table:
    """Columns by SQL over rows, in their order. Rows that are GONE, or for which the condition is
    not true, are GONE, and have `own` alone. Raises SettingsError, and Rejected where a value
    cannot be computed."""
    rows = rows.append_column(_PLACE, pa.array(range(len(rows)), pa.int64()))
    # DataFusion computes a branch of CASE only for its rows.
    columns = [f"{text} AS {quoted(name)}" for name, text in own.items()]
    columns += [
        f"CASE WHEN {GONE} THEN NULL ELSE {text} END AS {quoted(name)}"
        for name, text in values.items()
    ]
    statement = (
        f"SELECT {', '.join(columns)}, {GONE} FROM (SELECT * EXCEPT ({GONE}),"
        f" CASE WHEN {GONE} THEN true ELSE ({where}) IS NOT TRUE END AS {GONE} FROM rows)"
        f" AS source ORDER BY {_PLACE}"
    )
    # A QueryBuilder takes tables of Delta only.
    with TemporaryDirectory(prefix="penstock-") as folder, translated("computing in", folder):
        write_deltalake(folder, rows)
        builder = _session().register("rows", DeltaTable(folder))
        try:
            found = builder.execute(statement)
        except Exception as error:
            raise SettingsError(
                f"`set` or `filter` is not SQL over its columns: {error_text(error)}",
                "tables.expression", hint="correct it in the map",
            ) from error  # fmt: skip
        try:
            return pa.table(found.read_all())
        except Exception as error:
            # What comes after the kinds of the error may be a value.
            parts = error_text(error).split(": ")
            *_, kind = "", *takewhile(lambda each: each.endswith("error"), parts)
            raise Rejected(
                f"`set` or `filter` fails for a row: {kind}", "delta.not-computed",
                hint="correct it in the map; try_cast makes null of a value that does not fit",
            ) from error  # fmt: skip


def entering(
    condition: str, relation: SourceRelation, lacking: Sequence[tuple[int, str, str]],
    absent: Collection[int],
) -> set[int]:  # fmt: skip
    """Of the rows that are `lacking` values (number, line, key), and `absent` from the table, those
    that a filter may let in. Raises UnsentValue where it needs such a value."""
    used = {name for name in relation.names if mentions(condition, name)}
    found = set()
    for number, line, _ in lacking:
        unsent = {relation.names[each] for each in LINES.unsent(line)}
        # Where nothing that decides was sent, the row was outside, and is.
        if number in absent and not used <= unsent:
            if used & unsent:
                raise UnsentValue("`filter` needs a value", "tables", hint=SENDS_ALL)
            found.add(number)
    return found


def refuse_unsent(
    mapping: RowMapping, relation: SourceRelation, changes: Iterable[LineChange]
) -> None:
    """Raises UnsentValue where a change lacks a value that SQL needs, and that no table has."""
    texts = [each for each in mapping.computed.values()
             if each.strip().strip('"') not in relation.names]  # fmt: skip
    texts.append(mapping.filter)
    for one in changes if mapping.has_expressions else ():
        if one.has_unsent and one.after is not None:
            for number in LINES.unsent(LINES.completed(one.after, one.before)):
                if any(mentions(text, relation.names[number]) for text in texts):
                    raise UnsentValue(
                        f"`set` or `filter` needs the column {relation.names[number]}", "tables",
                        hint=SENDS_ALL,
                    )  # fmt: skip
