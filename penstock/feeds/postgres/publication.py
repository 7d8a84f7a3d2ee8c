"""The publication: which tables the server sends. Made only when asked; never altered."""

from psycopg import sql

from penstock.feeds.postgres.connect import Ordinary
from penstock.feeds.postgres.failures import translating
from penstock.feeds.postgres.settings import PostgresSettings, split_table
from penstock.model.errors import SettingsError


def create_statement(settings: PostgresSettings) -> str:
    """The SQL that makes the publication these settings want."""
    what: sql.Composable = sql.SQL("FOR ALL TABLES")
    if settings.tables:
        tables = sql.SQL(", ").join(sql.Identifier(*split_table(each)) for each in settings.tables)
        what = sql.SQL("FOR TABLE {}").format(tables)
    name = sql.Identifier(settings.publication)
    return sql.SQL("CREATE PUBLICATION {} {}").format(name, what).as_string(None)


def publication_exists(connection: Ordinary, name: str) -> bool:
    """Whether there is a publication of that name in this database."""
    query = "SELECT 1 FROM pg_catalog.pg_publication WHERE pubname = %s"
    with translating("reading the publications"):
        return connection.execute(query, (name,)).fetchone() is not None


def ensure_publication(connection: Ordinary, settings: PostgresSettings) -> None:
    """Creates it if it is missing and may be created; raises SettingsError if it may not."""
    if publication_exists(connection, settings.publication):
        return
    statement = create_statement(settings)
    if not settings.create_publication:
        raise SettingsError(
            f"there is no publication {settings.publication!r}",
            hint=f"as the tables' owner: {statement}; or set `create_publication: true`",
        )
    with translating(f"creating the publication {settings.publication}"):
        connection.execute(statement.encode())
