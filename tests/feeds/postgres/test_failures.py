"""psycopg's exceptions -> ours: none unmapped, each with a remedy, no secret in any."""

import psycopg
import pytest

from penstock.feeds.postgres import PostgresFeed, PostgresSettings
from penstock.feeds.postgres.failures import (
    backend_error,
    failure,
    is_internal,
    translated,
    translating,
)
from penstock.model.errors import PenstockError, PositionLost, SettingsError, Unavailable
from tests.servers import Postgres
from tests.waiting import until

STATES = sorted(
    kind.sqlstate
    for kind in vars(psycopg.errors).values()
    if isinstance(kind, type) and issubclass(kind, psycopg.Error) and kind.sqlstate
)
DEFECT = "this is a defect"


def test_psycopg_knows_many_states() -> None:
    assert len(STATES) > 200


@pytest.mark.parametrize("state", STATES)
def test_every_state_is_an_error_of_ours_with_a_remedy(state: str) -> None:
    error = failure(state, "something happened", "reading")
    assert type(error) in (SettingsError, Unavailable, PositionLost)
    assert error.hint
    assert "something happened" in error.message


@pytest.mark.parametrize(
    "kind",
    [
        psycopg.Error,
        psycopg.InterfaceError,
        psycopg.DatabaseError,
        psycopg.DataError,
        psycopg.OperationalError,
        psycopg.IntegrityError,
        psycopg.InternalError,
        psycopg.ProgrammingError,
        psycopg.NotSupportedError,
    ],
)
def test_every_exception_of_the_driver_itself_is_an_error_of_ours(
    kind: type[psycopg.Error],
) -> None:
    with pytest.raises(PenstockError) as caught, translating("reading"):
        raise kind("what it said")
    assert caught.value.hint
    assert "what it said" in caught.value.message


def test_the_sockets_exceptions_are_unavailable() -> None:
    with pytest.raises(Unavailable), translating("reading"):
        raise ConnectionResetError("reset by peer")


@pytest.mark.parametrize(
    ("state", "message", "kind", "remedy"),
    [
        ("28P01", "password authentication failed", SettingsError, "password"),
        ("3D000", 'database "x" does not exist', SettingsError, "database"),
        ("42501", "must be superuser", SettingsError, "REPLICATION"),
        ("55000", "logical decoding requires wal_level >= logical", SettingsError, "wal_level"),
        ("55006", "replication slot is active for PID 7", Unavailable, "one reader"),
        ("55000", "can no longer get changes from replication slot", PositionLost, "anew"),
        ("55000", "can no longer access replication slot", PositionLost, "anew"),
        ("42704", 'publication "p" does not exist', SettingsError, "create it"),
        ("42704", 'replication slot "s" does not exist', PositionLost, "gone"),
        ("58P01", "requested WAL segment has already been removed", PositionLost, "drop"),
        ("58P01", 'could not access file "pgoutput": No such file', Unavailable, "files"),
        ("53400", "all replication slots are in use", SettingsError, "max_replication_slots"),
        ("53300", "sorry, too many clients already", Unavailable, "max_connections"),
        ("53300", "exceeds max_wal_senders", Unavailable, "max_wal_senders"),
        ("57P01", "terminating connection", Unavailable, "retries"),
        ("57P03", "the database system is starting up", Unavailable, "retries"),
        ("57014", "canceling statement due to statement timeout", Unavailable, "too long"),
        ("XX000", "could not map filenumber", Unavailable, "log"),
        ("99999", "never seen", SettingsError, "report"),
        (None, "connection refused? Connection refused", Unavailable, "start the server"),
        (None, 'FATAL:  role "nobody" does not exist', SettingsError, "user"),
        (None, "FATAL:  password authentication failed for user", SettingsError, "password"),
        (None, "FATAL:  Umwandlung zwischen UTF8 und MULE_INTERNAL", SettingsError, "pg_dump"),
        (None, "anything else", Unavailable, "retries"),
    ],
)
def test_what_the_server_says_decides_the_kind_and_the_remedy(
    state: str | None, message: str, kind: type[PenstockError], remedy: str
) -> None:
    error = failure(state, message, "connecting")
    assert type(error) is kind
    assert remedy in error.hint


def test_an_error_response_is_read_field_by_field() -> None:
    error = backend_error(b"SERROR\0C55006\0Mslot is active\0Dfor PID 7\0\0", "starting")
    assert isinstance(error, Unavailable)
    assert error.message == "starting: slot is active (for PID 7)"


def test_only_an_internal_error_is_internal() -> None:
    assert is_internal(failure("XX000", "oops", "reading"))
    assert is_internal(backend_error(b"\0", "starting"))  # without fields
    assert not is_internal(failure("57P01", "oops", "reading"))


def test_a_syntax_error_is_our_defect_and_says_so() -> None:
    assert DEFECT in translated(psycopg.errors.SyntaxError("near x"), "reading").hint


@pytest.mark.parametrize(
    ("change", "kind", "remedy"),
    [
        ({"port": 1}, Unavailable, "start the server"),
        ({"host": "no.such.host.invalid"}, Unavailable, "host"),
        ({"database": "nope"}, SettingsError, "database"),
        ({"user": "nobody"}, SettingsError, "user"),
    ],
)
def test_a_connection_that_fails_says_what_to_correct_and_no_password(
    postgres: Postgres, change: dict[str, object], kind: type[PenstockError], remedy: str
) -> None:
    parts = {"user": "postgres", "host": postgres.host, "port": postgres.port, "database": "x"}
    url = "postgresql://{user}:s3cret@{host}:{port}/{database}".format(**(parts | change))
    feed = PostgresFeed(PostgresSettings(connection=url, slot="s", publication="p"))
    with pytest.raises(kind) as caught:
        feed.begin()
    assert remedy in caught.value.hint
    assert "s3cret" not in f"{caught.value!r} {caught.value} {caught.value.__cause__} {feed!r}"


def test_a_wrong_password_is_an_error_of_the_settings() -> None:
    hba = ["host all strict 127.0.0.1/32 scram-sha-256"]
    with Postgres(version=16, hba=hba) as server:
        server.execute("CREATE ROLE strict LOGIN REPLICATION PASSWORD 'right'")
        for password, fine in (("right", True), ("wrong", False)):
            url = server.url_of("postgres", "strict", password)
            settings = PostgresSettings(connection=url, slot="s", publication="p")
            levels = {finding.level for finding in PostgresFeed(settings).check()[:1]}
            assert levels == {"ok" if fine else "error"}
            if not fine:
                with pytest.raises(SettingsError, match="correct the password"):
                    PostgresFeed(settings).begin()


@pytest.mark.parametrize(
    ("server_settings", "remedy"),
    [
        ({"wal_level": "replica"}, "wal_level = logical"),
        ({"max_replication_slots": 0}, "max_replication_slots"),
    ],
)
def test_a_server_that_is_not_set_up_names_the_setting(
    server_settings: dict[str, object], remedy: str
) -> None:
    with Postgres(version=16, settings=server_settings) as server:
        feed = PostgresFeed(
            PostgresSettings(
                connection=server.url, slot="s", publication="p", create_publication=True
            )
        )
        with pytest.raises(SettingsError) as caught:
            feed.begin()
        assert remedy in caught.value.hint
        errors = [finding for finding in feed.check() if finding.level == "error"]
        assert any(remedy in finding.remedy for finding in errors)


def test_a_server_without_a_free_wal_sender_names_the_setting() -> None:
    with Postgres(version=16, settings={"max_wal_senders": 1}) as server:
        feed = PostgresFeed(
            PostgresSettings(
                connection=server.url, slot="s", publication="p", create_publication=True
            )
        )
        feed.begin()
        senders = "SELECT FROM pg_stat_activity WHERE backend_type = 'walsender'"
        with psycopg.connect(server.url, autocommit=True) as connection:
            until(lambda: connection.execute(senders).rowcount == 0)  # its own one has ended
        with psycopg.connect(server.url + "?replication=database", autocommit=True):
            with pytest.raises(Unavailable, match="max_wal_senders"):
                feed.follow(next(iter(feed.partitions())).partition)
            errors = [finding for finding in feed.check() if finding.level == "error"]
            assert any("max_wal_senders" in finding.remedy for finding in errors)
