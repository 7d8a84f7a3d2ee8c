"""Pages made by hand: cases that are easier to say than to provoke."""

import pickle
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from penstock.model.change import schema
from penstock.model.errors import Malformed, SettingsError
from penstock.model.page import Decoder, Page
from penstock.wire.pgoutput.context import Context, TypeEntry
from penstock.wire.pgoutput.decoder import DecoderSettings, PgoutputDecoder
from penstock.wire.pgoutput.messages import schema_version
from tests.wire.pages import (
    begin,
    commit,
    delete,
    insert,
    keepalive,
    logical_message,
    page_of,
    relation,
    truncate,
    update,
)

LSN = 0x1_0000_00FF
TABLE = relation(1, {"id": 23, "v": 25}, key=["id"])
VERSION = schema_version(TABLE)
Row = dict[str, Any]


def decode(page: Page, **settings: Any) -> list[Row]:
    decoder = PgoutputDecoder(DecoderSettings(backend="b", database="db", **settings))
    return [row for batch in decoder.decode(page) for row in batch.to_pylist()]


def one(*messages: bytes, context: Context | None = None, **settings: Any) -> Row:
    """The only change of a transaction of these messages."""
    (row,) = decode(page_of([begin(LSN), *messages, commit(LSN)], context=context), **settings)
    return row


def test_an_insert_is_a_whole_change() -> None:
    committed = int(datetime(2026, 1, 2, tzinfo=UTC).timestamp()) * 1_000_000
    page = page_of(
        [begin(LSN, at=committed + 3, xid=77), TABLE, insert(1, [1, "x"]), commit(LSN)],
        captured_at=committed + 9,
        partition="slot_1",
    )
    assert decode(page) == [
        {
            "backend": "b",
            "partition": "slot_1",
            "cursor": "00000001/000000FF",
            "ordinal": 0,
            "event_id": "b:00000001/000000FF:0",
            "operation": "INSERT",
            "tenant": None,
            "database": "db",
            "namespace": "public",
            "collection": "t",
            "relation_id": 1,
            "schema_version": VERSION,
            "document_id": "1",
            "key": '{"id":1}',
            "before": None,
            "after": '{"id":1,"v":"x"}',
            "unchanged": [],
            "transaction": "77",
            "committed_at": datetime(2026, 1, 2, 0, 0, 0, 3, UTC),
            "captured_at": datetime(2026, 1, 2, 0, 0, 0, 9, UTC),
            "delta": None,
            "mark": None,
            "route": None,
        }
    ]


@pytest.mark.parametrize("images", ["json", "msgpack"])
def test_batches_have_the_schema_of_changes(images: Any) -> None:
    decoder: Decoder = PgoutputDecoder(DecoderSettings(backend="b", database="db", images=images))
    page = page_of([begin(LSN), TABLE, insert(1, [1, None]), truncate([1]), commit(LSN)])
    (batch,) = decoder.decode(page)
    assert batch.schema.equals(schema(images))
    batch.validate(full=True)


def test_a_page_may_start_in_the_middle_of_a_transaction() -> None:
    context = Context(commit_lsn=LSN, committed_at=5, xid=9, ordinal=41, relations=(TABLE,))
    next_one = [begin(LSN + 9), insert(1, [3, None]), commit(LSN + 9)]
    page = page_of([insert(1, [2, None]), commit(LSN), *next_one], context=context)
    first, second = decode(page)
    assert (first["ordinal"], first["transaction"]) == (41, "9")
    assert first["event_id"] == "b:00000001/000000FF:41"
    assert (second["ordinal"], second["cursor"]) == (0, "00000001/00000108")


def test_a_streamed_payload_carries_xids() -> None:
    table = relation(1, {"id": 23}, key=["id"], xid=5)
    messages = [table, insert(1, [1], xid=5), truncate([1], xid=6),
                logical_message("p", b"c", lsn=3, transactional=True, xid=5)]  # fmt: skip
    context = Context(streamed=True, commit_lsn=LSN, xid=5, ordinal=2)
    rows = decode(page_of(messages, context=context))
    assert [(row["operation"], row["ordinal"]) for row in rows] == [
        ("INSERT", 2), ("TRUNCATE", 3), ("MESSAGE", 4),
    ]  # fmt: skip
    assert {row["transaction"] for row in rows} == {"5"}


def test_keepalives_are_skipped() -> None:
    page = page_of([begin(LSN), TABLE, insert(1, [1, "x"]), commit(LSN)])
    beside = keepalive() + page.payload + keepalive(reply=True)
    assert decode(replace(page, payload=beside)) == decode(page)


def test_two_tables_of_one_name_stay_apart() -> None:
    other = relation(2, {"id": 23}, namespace="other")
    page = page_of([begin(LSN), TABLE, other, insert(2, [1]), insert(1, [1, None]), commit(LSN)])
    assert [(row["namespace"], row["relation_id"]) for row in decode(page)] == [
        ("other", 2), ("public", 1),
    ]  # fmt: skip


def test_an_unchanged_key_comes_from_the_old_tuple() -> None:
    table = relation(1, {"k": 25, "v": 25}, key=["k"])
    row = one(table, update(1, [..., "x"], key=["kkk", None]))
    assert (row["document_id"], row["key"]) == ("kkk", '{"k":"kkk"}')
    assert (row["after"], row["unchanged"]) == ('{"v":"x"}', ["k"])
    assert one(table, update(1, [..., "x"]))["document_id"] is None


def test_a_key_that_is_unchanged_in_part_is_whole() -> None:
    table = relation(1, {"a": 25, "b": 23, "v": 25}, key=["a", "b"])
    row = one(table, update(1, [..., 2, "x"], key=["aaa", 1, None]))
    assert row["document_id"] == '["aaa",2]'
    assert row["before"] == '{"a":"aaa","b":1}'


def test_full_identity_takes_the_key_from_the_context() -> None:
    table = relation(1, {"id": 23, "v": 25}, key=["id", "v"], identity="f")
    keyed = Context(keys={1: ("id",)})
    row = one(table, update(1, [2, "y"], old=[1, "x"]), context=keyed)
    assert (row["key"], row["document_id"]) == ('{"id":2}', "2")
    assert row["before"] == '{"id":1,"v":"x"}'
    gone = one(table, delete(1, old=[1, "x"]), context=keyed)
    assert (gone["document_id"], gone["before"], gone["after"]) == ("1", row["before"], None)
    for context in (Context(), Context(keys={1: ("no_such_column",)})):
        row = one(table, insert(1, [1, "x"]), context=context)
        assert row["key"] is row["document_id"] is None


def test_what_a_page_knows_of_keys_and_types_is_not_kept_for_the_next() -> None:
    table = relation(1, {"id": 23, "m": 70_000}, key=["id"], identity="f")
    decoder = PgoutputDecoder(DecoderSettings(backend="b", database="db"))
    number = {70_000: TypeEntry(kind="d", name="n", inner=23)}
    label = {70_000: TypeEntry(kind="e", name="n")}

    def decoded(context: Context) -> tuple[Any, Any]:
        page = page_of([begin(LSN), table, insert(1, [1, "7"]), commit(LSN)], context=context)
        row = decoder.decode(page)[0].to_pylist()[0]
        return row["document_id"], orjson.loads(row["after"])["m"]

    assert decoded(Context(types=number)) == (None, 7)
    assert decoded(Context(types=number, keys={1: ("id",)})) == ("1", 7)
    assert decoded(Context(types=label)) == (None, "7")
    assert decoded(Context()) == (None, "7")


@pytest.mark.parametrize(
    ("oids", "cells", "document_id"),
    [
        ([23], [1], "1"),
        ([25], ["x y"], "x y"),
        ([16], ["t"], "true"),
        ([701], ["1.5"], "1.5"),
        ([1184], ["2026-01-02 03:04:05+00"], "2026-01-02T03:04:05Z"),
        ([17], ["\\x00ff"], "AP8="),
        ([1007], ["{1,2}"], "[1,2]"),
        ([3802], ['{"a": 1}'], '{"a": 1}'),
        ([25, 23], ["x", 1], '["x",1]'),
        ([17, 1001], ["\\x00ff", "{\"\\\\x00\"}"], '["AP8=",["AA=="]]'),
    ],
)  # fmt: skip
def test_the_document_id_is_the_key_as_text_in_any_encoding(
    oids: list[int], cells: list[Any], document_id: str
) -> None:
    columns = {f"k{number}": oid for number, oid in enumerate(oids)}
    table = relation(1, columns, key=list(columns))
    for images in ("json", "msgpack"):
        assert one(table, insert(1, cells), images=images)["document_id"] == document_id


def test_tables_narrow_but_ordinals_count_all() -> None:
    other = relation(2, {"id": 23}, name="other")
    messages = [begin(LSN), TABLE, other, insert(2, [1]), insert(1, [1, "x"]), insert(2, [2]),
                truncate([2, 1]), commit(LSN)]  # fmt: skip
    rows = decode(page_of(messages), tables=frozenset({("public", "t")}))
    assert [(row["operation"], row["ordinal"]) for row in rows] == [("INSERT", 1), ("TRUNCATE", 4)]
    assert decode(page_of(messages), tables=frozenset({("other", "t")})) == []


def test_a_table_that_nobody_wants_is_not_decoded() -> None:
    broken = insert(1, ["no number", b"\xff"])
    assert decode(page_of([begin(LSN), TABLE, broken, commit(LSN)]), tables=frozenset()) == []


def test_tenants_follow_the_rule() -> None:
    table = relation(1, {"id": 23, "who": 25}, key=["id", "who"])
    for message in (
        insert(1, [1, "me"]), update(1, [1, "me"]), delete(1, key=[1, "me"]),
        update(1, [1, ...], key=[1, "me"]),
    ):  # fmt: skip
        assert one(table, message)["tenant"] is None
        assert one(table, message, tenant="database")["tenant"] == "db"
        assert one(table, message, tenant="field:who")["tenant"] == "me"
        assert one(table, message, tenant="field:id")["tenant"] == "1"
        assert one(table, message, tenant="field:nothing")["tenant"] is None
    assert one(table, insert(1, [1, None]), tenant="field:who")["tenant"] is None
    for rule in ("", "field:", "column:x"):
        with pytest.raises(SettingsError, match="rule for tenants"):
            DecoderSettings(backend="b", database="db", tenant=rule)


def test_an_empty_message_prefix_is_a_collection() -> None:
    row = one(logical_message("", b"", lsn=1, transactional=True))
    assert (row["collection"], row["after"]) == ("", '{"prefix":"","content":""}')


def test_a_message_outside_of_transactions_takes_no_ordinal() -> None:
    outside = logical_message("p", b"\xff", lsn=LSN + 1, transactional=False)
    page = page_of([outside, begin(LSN), TABLE, insert(1, [1, None]), commit(LSN)])
    message, row = decode(page)
    assert (message["cursor"], message["ordinal"]) == ("00000001/000000FF", 0)
    assert orjson.loads(message["after"]) == {"prefix": "p", "content": "/w==", "binary": True}
    assert (row["cursor"], row["ordinal"]) == ("00000001/000000FF", 0)


def test_unknown_types_are_collected() -> None:
    decoder = PgoutputDecoder(DecoderSettings(backend="b", database="db"))
    table = relation(1, {"id": 23, "a": 70_000, "b": 80_000}, key=["id"])
    types = {70_000: TypeEntry(kind="b", name="hstore")}
    page = page_of(
        [begin(LSN), table, insert(1, [1, '"a"=>"b"', "?"]), commit(LSN)],
        context=Context(types=types),
    )
    (batch,) = decoder.decode(page)
    assert orjson.loads(batch.column("after")[0].as_py())["a"] == '"a"=>"b"'
    assert decoder.unknown_types == {"hstore", "type with OID 80000"}


def test_a_decoder_pickles_as_its_settings() -> None:
    settings = DecoderSettings(
        backend="b", database="db", tables=frozenset({("public", "t")}), tenant="field:id"
    )
    decoder = PgoutputDecoder(settings)
    page = page_of([begin(LSN), TABLE, insert(1, [1, None]), commit(LSN)])
    before = decoder.decode(page)
    copy = pickle.loads(pickle.dumps(decoder))
    assert copy.settings == settings
    assert copy.decode(page) == before


def test_a_page_that_says_something_else_is_malformed() -> None:
    page = page_of([begin(LSN), TABLE, insert(1, [1, None]), insert(1, [2, None]), commit(LSN)])
    lies: list[dict[str, Any]] = [
        {"count": 1}, {"count": 3}, {"first": page.last}, {"last": page.first},
        {"first": page.first._replace(cursor="00000000/00000001")},
    ]  # fmt: skip
    for lie in lies:
        with pytest.raises(Malformed, match="a page"):
            decode(replace(page, **lie))
