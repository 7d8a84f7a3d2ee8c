"""The feed as a value: it is its settings, and touches nothing until it is asked to."""

import pickle
import socket

import pytest

from penstock.feeds.postgres import PLUGIN, PostgresFeed, PostgresSettings
from penstock.process.plugins import plugin

URL = "postgresql://user:s3cret@host.invalid:5432/shop"


def _refuse(*_: object, **__: object) -> None:
    raise AssertionError("it tried to connect")


def test_constructing_pickling_and_decoding_need_no_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", _refuse)
    monkeypatch.setattr("psycopg.connect", _refuse)
    feed = PostgresFeed(PostgresSettings(connection=URL, slot="s", publication="p", name="b"))
    copy: PostgresFeed = pickle.loads(pickle.dumps(feed))
    assert copy.backend == "b"
    assert [each.partition for each in copy.partitions()] == ["s"]
    pickle.dumps(copy.decoder("msgpack"))


def test_it_is_found_by_name() -> None:
    assert plugin("feeds", "postgres") is PLUGIN
    assert PLUGIN.settings is PostgresSettings


def test_it_prints_where_it_is_and_no_secret() -> None:
    feed = PostgresFeed(PostgresSettings(connection=URL, slot="s", publication="p"))
    assert repr(feed) == "PostgresFeed(s at host.invalid:5432/shop)"


def test_the_decoder_knows_database_tenant_and_tables() -> None:
    settings = PostgresSettings(
        connection=URL, slot="s", publication="p", tenant="database", tables=("a", "x.b")
    )
    decoder = PostgresFeed(settings).decoder("json")
    known = decoder.decoder.settings  # type: ignore[attr-defined]
    assert (known.backend, known.database, known.tenant) == ("default", "shop", "database")
    assert known.tables == {("public", "a"), ("x", "b")}
