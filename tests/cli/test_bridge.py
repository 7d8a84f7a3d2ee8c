"""`penstock bridge`: flags and environment as the bridge's users know them -> a pipeline."""

from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from click.testing import CliRunner
from psycopg.conninfo import conninfo_to_dict

from penstock import cli
from penstock.cli.bridge import bridge_pipeline
from penstock.config import Pipeline
from penstock.model.errors import SettingsError

ENVIRONMENT = {
    "PG_HOST": "db",
    "PG_PORT": "5433",
    "PG_DB": "shop",
    "POSTGRES_BRIDGE_USER": "reader",
    "POSTGRES_BRIDGE_PASSWORD": "p@ss:w/rd?#%",
    "NATS_HOST": "broker",
    "NATS_BRIDGE_USER": "bridge",
    "NATS_BRIDGE_PASSWORD": "s3:cr@t",
}


def made(remove: str = "", **changes: str) -> Pipeline:
    environment = {key: value for key, value in (ENVIRONMENT | changes).items() if key != remove}
    return bridge_pipeline(environment, slot="my_slot", publication="my_pub")


def connection(pipeline: Pipeline) -> str:
    return pipeline.backends[0].settings.connection.get_secret_value()  # type: ignore[attr-defined, no-any-return]


def url(pipeline: Pipeline) -> str:
    return pipeline.sink.settings.url.get_secret_value()  # type: ignore[attr-defined, no-any-return]


def test_flags_and_environment_make_a_pipeline() -> None:
    found = made()
    backend, sink = found.backends[0], found.sink
    assert (found.name, backend.name, backend.type) == ("my_slot", "default", "postgres")
    assert (backend.settings.slot, backend.settings.publication) == ("my_slot", "my_pub")  # type: ignore[attr-defined]
    kept = sink.type, sink.settings.stream, sink.settings.encoding  # type: ignore[attr-defined]
    assert kept == ("jetstream", "CDC", "msgpack")
    assert sink.settings.subject == "cdc.{collection}.{operation}"  # type: ignore[attr-defined]
    assert (found.ops.bind, found.ops.port) == ("127.0.0.1", 9090)


def test_chunks_of_snapshots_are_compressed_on_request() -> None:
    assert made().snapshot.compression == "none"
    found = bridge_pipeline(ENVIRONMENT, slot="s", publication="p", compression="zstd")
    assert found.snapshot.compression == "zstd"
    output = CliRunner().invoke(cli.main, ["bridge", "--help"]).output
    assert "--zstd" in output


def test_every_character_of_a_password_arrives() -> None:
    found = conninfo_to_dict(connection(made()))
    login = {"user": "reader", "password": "p@ss:w/rd?#%"}
    assert found == {"host": "db", "port": "5433", "dbname": "shop", **login}
    broker = urlsplit(url(made()))
    assert (broker.hostname, broker.port) == ("broker", 4222)
    assert (broker.username, unquote(broker.password or "")) == ("bridge", "s3:cr@t")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("broker", "broker:4222"),
        ("broker:5222", "broker:5222"),
        ("::1", "[::1]:4222"),
        ("[::1]:5222", "[::1]:5222"),
    ],
)
def test_a_host_may_bring_its_port(host: str, expected: str) -> None:
    assert url(made(NATS_HOST=host)).partition("@")[2] == expected


def test_the_port_of_postgres_defaults_to_5432() -> None:
    assert ":5432/" in connection(made(remove="PG_PORT"))


def test_nats_needs_no_login() -> None:
    assert url(made(NATS_BRIDGE_USER="", NATS_BRIDGE_PASSWORD="")) == "nats://broker:4222"


@pytest.mark.parametrize("name", [name for name in ENVIRONMENT if name != "PG_PORT"])
def test_a_variable_that_is_missing_is_named(name: str) -> None:
    with pytest.raises(SettingsError, match=rf"the environment variable {name} is not set"):
        made(remove=name)


def test_all_that_are_missing_are_named_at_once() -> None:
    with pytest.raises(SettingsError, match=r"variables PG_HOST, PG_DB, .*, NATS_HOST are not set"):
        bridge_pipeline({}, slot="s", publication="p")


@pytest.mark.parametrize("name", ["PG_PORT", "NATS_PORT"])
def test_a_port_is_a_number(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is not a port number"):
        made(**{name: "x"})


def test_a_slot_that_can_not_be_is_a_clear_error() -> None:
    with pytest.raises(SettingsError, match=r"penstock bridge: backends\[0\]\.slot: a slot's name"):
        bridge_pipeline(ENVIRONMENT, slot="My-Slot", publication="p")


def test_no_error_and_no_repr_holds_a_password() -> None:
    assert "p@ss" not in repr(made())
    with pytest.raises(SettingsError) as error:
        bridge_pipeline(ENVIRONMENT, slot="My-Slot", publication="p", subject="p@ss:w/rd?#%")
    assert "p@ss" not in str(error.value)


URLS = {
    "DATABASE_URL": "postgresql://reader:p%40ss@db:5433/shop",
    "NATS_URL": "nats://bridge:s3@broker:5222",
    "NATS_NKEY_SEED": "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY",
}


def test_urls_stand_in_for_hosts_and_logins() -> None:
    found = bridge_pipeline(URLS, slot="s", publication="p")
    assert conninfo_to_dict(connection(found))["password"] == "p@ss"
    assert url(found) == URLS["NATS_URL"]
    assert found.sink.settings.nkey.get_secret_value() == URLS["NATS_NKEY_SEED"]  # type: ignore[attr-defined]
    with_login = {"NATS_URL": "nats://broker:5222", "NATS_BRIDGE_USER": "u"}
    found = bridge_pipeline(
        URLS | with_login | {"NATS_BRIDGE_PASSWORD": "w"}, slot="s", publication="p"
    )
    assert found.sink.settings.user == "u"  # type: ignore[attr-defined]


def test_a_host_that_is_given_wins_over_the_url_of_another_program() -> None:
    found = made(**URLS)
    assert conninfo_to_dict(connection(found))["password"] == "p@ss:w/rd?#%"
    assert urlsplit(url(found)).hostname == "broker"
    assert urlsplit(url(found)).port == 4222


def test_no_error_and_no_repr_holds_what_a_url_or_a_seed_has() -> None:
    for bad in ({"slot": "My-Slot"}, {"subject": f"{{x}} {URLS['NATS_NKEY_SEED']} p@ss"}):
        given: dict[str, Any] = {"slot": "s", "publication": "p", **bad}
        with pytest.raises(SettingsError) as error:
            bridge_pipeline(URLS, **given)
        assert "p@ss" not in str(error.value)
        assert URLS["NATS_NKEY_SEED"] not in str(error.value)
    assert "SUAC" not in repr(bridge_pipeline(URLS, slot="s", publication="p"))


def test_messages_are_the_bridges_unless_another_layout_is_asked_for() -> None:
    assert made().sink.settings.layout == "bridge"  # type: ignore[attr-defined]
    assert made().backends[0].settings.values == "bridge"  # type: ignore[attr-defined]
    found = bridge_pipeline(ENVIRONMENT, slot="s", publication="p", layout="penstock")
    assert found.backends[0].settings.values == "typed"  # type: ignore[attr-defined]


def test_a_snapshot_may_take_less_where_the_stream_keeps_little() -> None:
    assert made().snapshot.max_age == 1800
    found = bridge_pipeline(ENVIRONMENT, slot="s", publication="p", snapshot_max_age="20s")
    assert found.snapshot.max_age == 20


def test_a_missing_variable_ends_with_exit_code_2(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    done = CliRunner().invoke(cli.main, ["bridge", "--slot", "s", "--pub", "p"])
    assert done.exit_code == 2
    assert "PG_HOST" in done.stderr
