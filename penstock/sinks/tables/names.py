"""Names that are penstock's, in a target or over the rows of a source, and that the user has as
well: such a table waits, as one of the two would be lost."""

from collections.abc import Collection, Iterator

from penstock.model.errors import SettingsError
from penstock.sinks.tables.settings import MappedTable
from penstock.tables.history import OWN_NAMES as OF_VERSIONS
from penstock.tables.lines import SourceRelation
from penstock.tables.staged import OWN_NAMES as OF_EXPRESSIONS


def taken(
    table: MappedTable, relation: SourceRelation, there: Collection[str]
) -> Iterator[SettingsError]:
    """What is wrong with a source's columns; `there`: those of its target, now or soon."""
    options, names, sid = table.options, {*relation.names}, table.sid_column
    written = {*options.set} or names & {*(names if options.columns is None else options.columns)}
    history = table.periods.kinds.keys() if table.periods is not None else set[str]()
    if not options.set and sid in written and sid in there:
        yield SettingsError(
            f"the source's own column {sid} would be lost: that of {table.full_target} has the"
            " source's name",
            "tables.name-taken",
            hint="set `sink.sid_column` to a name that no table has, and call the target's column"
            " so where several sources flow there; or leave the source's out by `columns`, or say"
            " by `set` what becomes of it",
        )
    if clash := sorted(written & history):
        yield SettingsError(
            f"{', '.join(clash)} would be lost: columns of the history {table.full_target} are"
            " called so",
            "tables.name-taken",
            hint="give the history's columns other names: `sink.history`; or leave the source's out"
            " by `columns`",
        )
    own = (OF_EXPRESSIONS if options.set or options.filter else set()) | (
        OF_VERSIONS if history else set()
    )
    if clash := sorted(names & own):
        yield SettingsError(
            f"the source's columns {', '.join(clash)} are called as values that penstock has beside"
            " them (for `set` and `filter`, or to make versions)",
            "tables.name-taken",
            hint="rename them at the source, or leave them out of its publication",
        )
