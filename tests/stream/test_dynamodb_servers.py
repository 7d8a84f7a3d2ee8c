"""The iterator on servers that others wrote (`dynamodb/endpoints.py`), and on the scripted one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

import penstock
from penstock.model.errors import InvalidStream
from penstock.stream import Stream
from tests.dynamodb.endpoints import OTHERS, Endpoint, Table, table_on
from tests.dynamodb.server import StreamsServer
from tests.servers import Moto
from tests.stream.taking import ids, saved, some

pytestmark = [pytest.mark.live]


@pytest.fixture(scope="module", params=[*OTHERS, StreamsServer])
def server(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    with request.param() as made:
        yield made


@pytest.fixture
def table_of(server: Endpoint) -> Iterator[Callable[..., Table]]:
    """`table_of(view)`."""
    with ExitStack() as stack:
        yield lambda *view: stack.enter_context(table_on(server, *view))


def opened(table: Table, at: Any = "trim_horizon", name: str = "") -> Stream:
    given = {**table.given, "table": name or table.name, "reads": 1000, "poll": 0.01}
    return penstock.stream("dynamodb", at=at, **given)


def names(first: int, end: int) -> list[str]:
    return [f"r{number}" for number in range(first, end)]


VALUES: dict[str, Any] = {
    "n": {"N": "12345678901234567890123456789012345678"}, "half": {"N": "1.50"},
    "b": {"B": b"\0\xff"}, "ss": {"SS": ["b", "a"]}, "ns": {"NS": ["10", "9"]},
    "bs": {"BS": [b"\0", b"\1"]}, "m": {"M": {"l": {"L": [{"BOOL": True}, {"NULL": True}]}}},
}  # fmt: skip


def test_records_have_images_with_pythons_values(table_of: Callable[..., Table]) -> None:
    table = table_of()
    before = datetime.now(UTC)
    table.put("a", **VALUES)
    table.put("a", n={"N": "7"})
    table.delete("a")
    inserted, changed, removed = some(opened(table), 3)
    assert inserted["new"] == {
        "id": "a", "n": Decimal("12345678901234567890123456789012345678"), "half": Decimal("1.5"),
        "b": b"\0\xff", "ss": {"a", "b"}, "ns": {Decimal(10), Decimal(9)}, "bs": {b"\0", b"\1"},
        "m": {"l": [True, None]},
    }  # fmt: skip
    types = [each["meta"]["event"]["type"] for each in (inserted, changed, removed)]
    assert types == ["insert", "modify", "remove"]
    assert ids([inserted, changed, removed]) == ["a"] * 3
    assert (inserted["old"], changed["new"]) == (None, {"id": "a", "n": 7})
    assert changed["old"] == inserted["new"]
    assert (removed["new"], removed["old"]) == (None, {"id": "a", "n": 7})
    for record in (inserted, changed, removed):
        # A server may cut times to the minute.
        assert abs(record["meta"]["created_at"] - before) < timedelta(minutes=5)
        assert record["meta"]["sequence_number"].isdecimal()


@pytest.mark.parametrize("view", ["KEYS_ONLY", "NEW_IMAGE"])
def test_images_that_a_stream_leaves_out_are_null(
    table_of: Callable[..., Table], view: str
) -> None:
    table = table_of(view)
    table.put("a", n={"N": "1"})
    table.put("a", n={"N": "2"})
    records = some(opened(table), 2)
    assert ids(records) == ["a", "a"]
    assert [each["old"] for each in records] == [None, None]
    new = [{"id": "a", "n": 1}, {"id": "a", "n": 2}]
    assert [each["new"] for each in records] == (new if view == "NEW_IMAGE" else [None, None])


def test_resume_from_every_token_gives_exactly_the_rest(table_of: Callable[..., Table]) -> None:
    table = table_of()
    table.fill(12)
    stream = opened(table)
    tokens = [saved(stream)]
    for name in names(0, 12):
        assert ids(some(stream, 1)) == [name]
        stream.heartbeat()
        tokens.append(saved(stream))
    for done, token in enumerate(tokens):
        stream.move_to(token)
        assert ids(some(stream, 12 - done)) == names(done, 12)
        assert next(stream) is None


def test_latest_is_pinned_and_moves_go_everywhere(
    server: Endpoint, table_of: Callable[..., Table]
) -> None:
    table = table_of()
    table.fill(5)
    with opened(table, "latest") as stream:
        token = saved(stream)
    table.fill(3, start=5)
    now = datetime.now(UTC)
    # moto takes AT_TIMESTAMP, and fails at the first read with it.
    times = [now - timedelta(hours=1)] if not isinstance(server, Moto) else []
    with opened(table, token) as stream:
        assert ids(some(stream, 3)) == names(5, 8)
        for position in ("trim_horizon", "TRIM_HORIZON", *times):
            stream.move_to(position)
            at_it = saved(stream)
            assert ids(some(stream, 8)) == names(0, 8)
            stream.move_to(at_it)
            assert ids(some(stream, 8)) == names(0, 8)
        for position in ("latest", now + timedelta(hours=1)):
            stream.move_to(position)
            assert next(stream) is None
        table.fill(1, start=8)
        assert ids(some(stream, 1)) == names(8, 9)


def test_a_table_that_is_not_there_or_has_no_stream_says_so(
    table_of: Callable[..., Table],
) -> None:
    table = table_of()
    table.client.create_table(
        TableName="quiet",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    try:
        for name in ("quiet", "missing"):
            with pytest.raises(InvalidStream, match=f"the table {name}") as caught:
                opened(table, name=name)
            assert f"update-table --table-name {name}" in caught.value.hint
    finally:
        table.client.delete_table(TableName="quiet")
