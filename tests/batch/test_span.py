"""The changes between two positions of each kind of source, without Spark."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, timedelta
from typing import Any

import pytest

from penstock.batch.span import plan_span, read_span
from penstock.microbatch.options import read_source
from penstock.model.errors import SettingsError
from tests.cosmos.server import CosmosServer
from tests.dynamodb.server import StreamsServer
from tests.microbatch.runs import Run
from tests.microbatch.sources import (
    Documents,
    Events,
    Items,
    Orders,
    Shards,
    Written,
    table_in,
    writing,
)
from tests.mongo import shop_on
from tests.mongodb.history import History
from tests.mongodb.server import ScriptedMongod
from tests.servers import Postgres
from tests.slots import drop_slots

_KINDS = ["postgres", "postgres-sources", "mongodb", "mongodb-primary", "dynamodb", "cosmos"]


@pytest.fixture(params=_KINDS)
def source(request: pytest.FixtureRequest) -> Iterator[Written]:
    """A source of a kind, with what following it needs."""
    with ExitStack() as stack:
        made: Written
        if request.param == "postgres":
            made = stack.enter_context(table_in(request.getfixturevalue("database")))
        elif request.param == "postgres-sources":
            server: Postgres = request.getfixturevalue("postgres")
            databases = {sid: stack.enter_context(server.database()) for sid in ("a", "b")}
            for each in databases.values():
                stack.callback(drop_slots, each)
            made = Shards(databases)
        elif request.param == "dynamodb":
            made = Items(stack.enter_context(StreamsServer()))
        elif request.param == "cosmos":
            made = Orders(stack.enter_context(CosmosServer()), "latest_version")
        elif request.param == "mongodb-primary":
            history = History()
            made = Events(stack.enter_context(ScriptedMongod(history, "primary")), history)
        else:
            made = Documents(stack.enter_context(shop_on(request.getfixturevalue("mongo"))))
        Run(made.options)()
        yield made


def changes(options: Mapping[str, str], span: str) -> list[dict[str, Any]]:
    source, feed = read_source({**options, "changes": span})
    return [
        row
        for each in plan_span(source, feed)
        for batch in read_span(source, each, None)
        for row in batch.to_pylist()
    ]


def test_a_span_to_now_has_what_there_is_each_time(source: Written) -> None:
    source.write(250)
    source.split()
    source.write(50)
    for _ in range(2):
        assert sorted(source.found(changes(source.options, "earliest..now"))) == [*range(1, 301)]
    with writing(lambda: source.write(3)):
        got = sorted(source.found(changes(source.options, "..now")))
    assert got[:300] == [*range(1, 301)]
    assert len(got) == len({*got})


def sequence(row: Mapping[str, Any]) -> str:
    return f"{row['cursor']}:{row['ordinal']:010}"


@pytest.mark.parametrize("source", ["postgres", "mongodb-primary"], indirect=True)
def test_spans_side_by_side_have_each_change_once(source: Written) -> None:
    source.write(300)
    rows = changes(source.options, "..")
    cuts = [sequence(rows[17]), rows[150]["cursor"], sequence(rows[180]), sequence(rows[-1])]
    got: list[int] = []
    for one, two in zip(["", *cuts], [*cuts, ""], strict=True):
        got += source.found(changes(source.options, f"{one}..{two}"))
    assert got == [*range(1, 301)]
    assert changes(source.options, f"{cuts[1]}..{cuts[1]}") == []
    with pytest.raises(SettingsError, match="ends before it begins"):
        changes(source.options, f"{cuts[2]}..{cuts[0]}")


@pytest.mark.parametrize("source", ["mongodb", "mongodb-primary"], indirect=True)
@pytest.mark.parametrize("span", ["yesterday..", "FFFFFFF0/00000000..", "..FFFFFFF0/00000000"])
def test_a_position_of_another_source_is_an_error(source: Written, span: str) -> None:
    with pytest.raises(SettingsError) as caught:
        changes(source.options, span)
    assert caught.value.code == "mongodb.span-position"
    assert caught.value.hint


@pytest.mark.parametrize("source", ["postgres-sources", "dynamodb", "cosmos"], indirect=True)
def test_a_position_of_one_of_several_partitions_is_an_error(source: Written) -> None:
    for span in ("00000000/00000001:0000000000..now", "..00000000/00000001"):
        with pytest.raises(SettingsError) as caught:
            changes(source.options, span)
        assert caught.value.code == "feeds.span-position"


@pytest.mark.parametrize("source", ["mongodb"], indirect=True)
def test_a_server_whose_tokens_have_no_time_ends_at_no_position(source: Written) -> None:
    source.write(20)
    rows = changes(source.options, "..")
    after = changes(source.options, f"{sequence(rows[4])}..now")
    assert source.found(after) == [*range(6, 21)]
    with pytest.raises(SettingsError, match="tokens have no time"):
        changes(source.options, f"..{sequence(rows[4])}")


@pytest.mark.parametrize("source", ["mongodb-primary", "dynamodb"], indirect=True)
def test_spans_between_times_have_what_was_written_between_them(source: Written) -> None:
    server = source.history if isinstance(source, Events) else source.server
    source.write(50)
    rows = changes(source.options, "..")
    time = max(each["committed_at"] for each in rows).astimezone(UTC) + timedelta(seconds=5)
    server.advance(10)
    source.write(50)
    got = changes(source.options, f"..{time.isoformat()}")
    assert sorted(source.found(got)) == [*range(1, 51)]
    got = changes(source.options, f"{time.isoformat()}..")
    assert sorted(source.found(got)) == [*range(51, 101)]
    with pytest.raises(SettingsError) as caught:
        changes(source.options, "2000-01-01T00:00:00Z..")
    assert "changes-gone" in caught.value.code


@pytest.mark.parametrize("source", ["cosmos"], indirect=True)
def test_times_are_for_cosmos_too(source: Written) -> None:
    source.write(50)
    assert len(changes(source.options, "2000-01-01T00:00:00Z..")) == 50
    assert changes(source.options, "..2000-01-01T00:00:00Z") == []
    with pytest.raises(SettingsError, match="ends before it begins"):
        changes(source.options, "2001-01-01T00:00:00Z..2000-01-01T00:00:00Z")


@pytest.mark.parametrize("source", ["mongodb-primary"], indirect=True)
def test_changes_that_have_left_the_oplog_are_an_error(source: Written) -> None:
    source.write(50)
    first = sequence(changes(source.options, "..")[0])
    source.history.trim(10)
    with pytest.raises(SettingsError) as caught:
        changes({**source.options, "on_gap": "continue"}, f"{first}..now")
    assert caught.value.code == "spark.changes-gone"
