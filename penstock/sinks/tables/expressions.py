"""`set` and `filter` of the map: SQL of the user, each of them one expression over a source's row.

That it is one, and no part of another statement, its server says: it stands between parentheses
and, in a statement of its own, between two words. What closes the one does not close the other.
"""

from collections.abc import Iterator
from typing import Any

from psycopg import sql

from penstock.model.errors import SettingsError, Unavailable
from penstock.tables.database import TableDatabase
from penstock.tables.staged import META, OWN_SID, StagedRows

_FORMS = ("SELECT CAST(({0}) AS {1})", "SELECT CASE WHEN true THEN {0} END")


def wrong_expressions(
    cursor: Any, database: TableDatabase, staged: StagedRows
) -> Iterator[SettingsError]:
    """What is wrong with those that are not SQL over the source's columns; runs none of them.
    Raises Unavailable."""
    mapping, kinds = staged.mapping, staged.destination.columns
    columns = sql.SQL(", ").join(
        sql.SQL("CAST(NULL AS {}) AS {}").format(
            sql.SQL(database.type_at(cursor, each)), sql.Identifier(each.name)
        )
        for each in dict.fromkeys((OWN_SID, *META, *staged.relation.columns))
    )
    wanted = [
        (f"`set` of {name}", text, kinds.get(name, "text"))
        for name, text in mapping.computed.items()
    ]
    for what, text, kind in [*wanted, ("`filter`", mapping.filter, "boolean")]:
        try:
            for form in _FORMS if text else ():
                made = sql.SQL(form).format(sql.SQL(text), sql.SQL(kind))
                database.execute_one(
                    cursor, sql.SQL("{} FROM (SELECT {}) AS source LIMIT 0").format(made, columns)
                )
        except database.error as error:
            found = database.translation(error, "reading")
            if isinstance(found, Unavailable):
                raise found from error
            yield SettingsError(
                f"{what} is not SQL over its columns: {found.message}",
                code="tables.expression", hint="correct it in the map",
            )  # fmt: skip
