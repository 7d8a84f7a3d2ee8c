"""Values are the same text, whatever the environment, the role or the database prefer."""

from contextlib import closing

import pytest

from penstock.feeds.postgres.connect import (
    connect_exporting,
    connect_ordinary,
    connect_reading,
    connect_replication,
)
from penstock.model.errors import SettingsError
from penstock.wire.pgoutput.values import SESSION
from tests.feeds.postgres.reading import Reader

# What prefers something else: libpq's variables; settings of the role, the database and the URL.
_ENVIRONMENT = {
    "PGTZ": "Asia/Kolkata",
    "PGDATESTYLE": "German",
    "PGCLIENTENCODING": "LATIN1",
    "PGOPTIONS": "-c intervalstyle=sql_standard -c bytea_output=escape",
}
_PREFERRED = {
    "lc_monetary": "C.UTF-8", "timezone": "Asia/Kolkata", "datestyle": "SQL, DMY",
    "intervalstyle": "postgres_verbose", "extra_float_digits": "0", "bytea_output": "escape",
    "quote_all_identifiers": "on", "search_path": "public",
}  # fmt: skip
_ROW = """
    INSERT INTO t VALUES (1, '2026-01-02 03:04:05+00', '2026-01-02', '1 day', 1.5::float8 / 7,
    '\\x00ff', 1.5::numeric::money, 'users')
"""


@pytest.mark.parametrize("preferring", ["environment", "role", "database"])
def test_a_value_has_one_text_whatever_is_preferred(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, preferring: str
) -> None:
    database = reader.database
    database.execute(
        'CREATE TABLE t (id int PRIMARY KEY, at timestamptz, day date, "for" interval, n float8,'
        " b bytea, m money, r regclass)"
    )
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    if preferring == "environment":
        for name, value in _ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
    else:
        where = f'DATABASE "{database.name}"'
        whose = where if preferring == "database" else f"ROLE CURRENT_USER IN {where}"
        for name, value in _PREFERRED.items():
            database.execute(f"ALTER {whose} SET {name} = '{value}'")
    reader.prepare()
    database.execute(_ROW)
    (row,) = reader.take(1)
    assert row["after"] == {
        "id": 1, "at": "2026-01-02T03:04:05Z", "day": "2026-01-02", "for": "P1D",
        "n": 1.5 / 7, "b": "AP8=", "m": "$1.50", "r": "public.users",
    }  # fmt: skip


def test_every_session_has_the_settings_that_values_need(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in _ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    settings = reader.settings
    for made in (
        connect_ordinary(settings), connect_replication(settings),
        connect_exporting(settings, 5, lambda: False), connect_reading(settings, lambda: False),
    ):  # fmt: skip
        with closing(made) as connection:
            for name, value in SESSION.items():
                assert connection.execute(f"SHOW {name}".encode()).fetchone() == (value,)


def test_a_session_that_has_another_setting_all_the_same_is_an_error_that_names_it(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {**SESSION, "TimeZone": "Europe/Berlin"}  # what is set, and is in force, is UTC
    monkeypatch.setattr("penstock.feeds.postgres.connect.SESSION", wanted)
    with pytest.raises(SettingsError, match="TimeZone = UTC, and must have Europe/Berlin"):
        connect_reading(reader.settings, lambda: False)


def test_a_url_that_asks_for_replication_is_followed_and_checked(reader: Reader) -> None:
    """As those of kuvasz-streamer: in an ordinary connection the server would take no query."""
    url = reader.database.url
    asking = f"{url}{'&' if '?' in url else '?'}replication=database&application_name=a"
    same = Reader(reader.database, connection=asking, create_publication=True)
    same.prepare("CREATE TABLE t (id int PRIMARY KEY)")
    reader.database.execute("INSERT INTO t VALUES (1)")
    assert [row["after"] for row in same.take(1)] == [{"id": 1}]
    assert [each for each in same.feed.check() if each.level == "error"] == []
    same.close()
