"""A change that can't be read is a change of its own, and all others of its page are as ever."""

import base64
from dataclasses import replace
from typing import Any

import orjson
import ormsgpack
import pytest

from penstock.model.errors import Malformed
from penstock.model.page import Page
from penstock.model.position import PartitionId, Place
from penstock.wire.pgoutput.context import Context
from penstock.wire.pgoutput.decoder import DecoderSettings, PgoutputDecoder
from tests.wire.pages import (
    begin,
    commit,
    delete,
    frame,
    insert,
    logical_message,
    page_of,
    relation,
    truncate,
    update,
)

LSN = 0x1_0000_00FF
TABLE = relation(1, {"id": 23, "v": 25}, key=["id"])
OTHER = relation(2, {"id": 23}, key=["id"], name="other")
SECRET = b"secret\xff"
Row = dict[str, Any]


def decoder(on_error: Any = "dead-letter", **settings: Any) -> PgoutputDecoder:
    return PgoutputDecoder(
        DecoderSettings(backend="b", database="db", on_error=on_error, **settings)
    )


def rows_of(page: Page, **settings: Any) -> list[Row]:
    return [row for batch in decoder(**settings).decode(page) for row in batch.to_pylist()]


def transaction(*messages: bytes, context: Context | None = None) -> Page:
    return page_of([begin(LSN), *messages, commit(LSN)], context=context)


BAD = {
    "insert": (insert(1, [1, SECRET]), "not-utf8"),
    "update": (update(1, [1, SECRET]), "not-utf8"),
    "update of a key": (update(1, [1, SECRET], key=[2, None]), "not-utf8"),
    "update with an old row": (update(1, [1, "a"], old=[1, SECRET]), "not-utf8"),
    "delete": (delete(1, old=[1, SECRET]), "not-utf8"),
    "a value of another type": (insert(1, ["secret", "a"]), "not-its-type"),
    "a column too few": (insert(1, ["1"]), "broken-row"),
    "a value that an insert always has": (insert(1, [1, ...]), "broken-row"),
    "cut off": (insert(1, [1, "abc"])[:-1], "broken-row"),
    "too long": (insert(1, [1, "abc"]) + b"\0", "broken-row"),
    "binary": (insert(1, [1, "abc"]).replace(b"t\0\0\0\3", b"b\0\0\0\3"), "binary-format"),
}


@pytest.mark.parametrize("images", ["json", "msgpack"])
@pytest.mark.parametrize("bad", BAD)
def test_a_bad_change_is_an_error_with_its_place_and_table(bad: str, images: str) -> None:
    message, reason = BAD[bad]
    around = [TABLE, insert(1, [5, "before"]), b"", insert(1, [6, "after"])]
    fine = [begin(LSN), *around[:2], insert(1, [1, "x"]), around[3], commit(LSN)]
    page = page_of(fine)
    good = rows_of(page, images=images)
    payload = b"".join(frame(message if part == insert(1, [1, "x"]) else part) for part in fine)
    first, error, last = rows_of(replace(page, payload=payload), images=images)
    assert (first, last) == (good[0], good[2])
    same = "backend partition cursor ordinal event_id namespace collection relation_id"
    for name in [*same.split(), "database", "transaction", "committed_at", "captured_at"]:
        assert error[name] == good[1][name], name
    assert error["operation"] == "ERROR"
    assert (error["key"], error["before"], error["document_id"]) == (None, None, None)
    load: Any = ormsgpack.unpackb if images == "msgpack" else orjson.loads
    image = load(error["after"])
    raw = image["raw"] if images == "msgpack" else base64.b64decode(image["raw"])
    assert image["reason"] == reason
    assert raw[30:] == message
    assert "secret" not in image["error"]


def test_without_leave_the_page_is_malformed() -> None:
    with pytest.raises(Malformed, match=r"column v of public\.t is not UTF-8"):
        rows_of(transaction(TABLE, insert(1, [1, SECRET])), on_error="stop")


@pytest.mark.parametrize("bad", [0, 7, 49])
def test_one_of_many_is_bad(bad: int) -> None:
    def page(value: object) -> Page:
        cells = [[n, value if n == bad else f"v{n}"] for n in range(50)]
        return transaction(TABLE, *(insert(1, each) for each in cells))

    rows, good = rows_of(page(SECRET)), rows_of(page("fine"))
    assert [row["operation"] for row in rows] == [
        "ERROR" if n == bad else "INSERT" for n in range(len(good))
    ]
    assert [row for row in rows if row["operation"] != "ERROR"] == [
        row for n, row in enumerate(good) if n != bad
    ]
    assert rows[bad]["event_id"] == good[bad]["event_id"]


@pytest.mark.parametrize(
    "spoil", [(b"public", b"pub\xffic"), (b"\0t\0", b"\0\xff\0"), (b"v\0", b"\xff\0")]
)
def test_a_relation_that_cannot_be_decoded_spoils_its_rows_only(spoil: tuple[bytes, bytes]) -> None:
    broken = TABLE.replace(*spoil)
    rows = rows_of(
        transaction(
            OTHER, broken, insert(2, [1]), insert(1, [1, "x"]), update(1, [1, "y"]),
            delete(1, key=[1, None]), insert(2, [2]),
        )
    )  # fmt: skip
    assert [row["operation"] for row in rows] == ["INSERT", "ERROR", "ERROR", "ERROR", "INSERT"]
    errors = rows[1:4]
    assert {orjson.loads(row["after"])["reason"] for row in errors} == {"broken-relation"}
    assert {row["relation_id"] for row in errors} == {1}
    names = {f"{row['namespace']}.{row['collection']}" for row in errors}
    assert names <= {r"pub\xffic.t", r"public.\xff", "public.t"}
    with pytest.raises(Malformed, match="not UTF-8"):
        rows_of(transaction(broken, insert(1, [1, "x"])), on_error="stop")


def test_a_relation_that_is_read_again_is_followed_again() -> None:
    broken = TABLE.replace(b"v\0", b"\xff\0")
    reader = decoder()
    page = transaction(broken, insert(1, [1, "x"]), TABLE, insert(1, [2, "y"]))
    rows = [row for batch in reader.decode(page) for row in batch.to_pylist()]
    assert [row["operation"] for row in rows] == ["ERROR", "INSERT"]


def test_a_table_that_nobody_wants_spoils_nothing() -> None:
    wanted = frozenset({("public", "other")})
    page = transaction(TABLE, OTHER, insert(1, [1, SECRET]), insert(2, [1]))
    (row,) = rows_of(page, tables=wanted)
    assert (row["operation"], row["ordinal"]) == ("INSERT", 1)


def test_a_logical_message_whose_prefix_is_not_utf8() -> None:
    message = logical_message("XX", b"content", lsn=9, transactional=True)
    page = transaction(TABLE, message.replace(b"XX", b"\xff\xfe"), insert(1, [1, "x"]))
    error, row = rows_of(page)
    assert (error["operation"], error["ordinal"], error["collection"]) == ("ERROR", 0, None)
    assert orjson.loads(error["after"])["reason"] == "not-utf8"
    assert (row["operation"], row["ordinal"]) == ("INSERT", 1)
    with pytest.raises(Malformed, match="not UTF-8"):
        rows_of(page, on_error="stop")


def test_an_error_in_a_streamed_page() -> None:
    context = Context(
        streamed=True, commit_lsn=LSN, committed_at=5, xid=9, ordinal=3, relations=(TABLE,)
    )
    messages = [insert(1, [1, "x"], xid=10), insert(1, [2, SECRET], xid=11)]
    first, error = rows_of(page_of(messages, context=context))
    assert (first["operation"], error["operation"]) == ("INSERT", "ERROR")
    assert (error["ordinal"], error["transaction"]) == (4, "9")
    assert again(error)["ordinal"] == 4


def again(error: Row, **settings: Any) -> Row:
    """The change, decoded from what its error holds, as if it were mended."""
    image = orjson.loads(error["after"])
    place = Place(error["cursor"], error["ordinal"])
    page = Page(
        partition=PartitionId(error["partition"]),
        first=place,
        last=place,
        count=1,
        captured_at=0,
        context=base64.b64decode(image["context"]),
        payload=base64.b64decode(image["raw"]).replace(b"\xff", b"!"),
    )
    (row,) = rows_of(page, on_error="stop", **settings)
    return row


@pytest.mark.parametrize("bad", ["insert", "update", "update of a key", "delete"])
def test_what_an_error_holds_is_enough_to_read_it_later(bad: str) -> None:
    message, _ = BAD[bad]
    good = transaction(TABLE, insert(1, [0, "x"]), message.replace(b"\xff", b"!"))
    spoilt = transaction(TABLE, insert(1, [0, "x"]), message)
    assert again(rows_of(spoilt)[1]) == rows_of(good)[1]


def test_truncates_and_tenants_are_as_ever() -> None:
    rows = rows_of(transaction(TABLE, insert(1, [1, SECRET]), truncate([1])), tenant="database")
    assert [(row["operation"], row["tenant"]) for row in rows] == [
        ("ERROR", "db"),
        ("TRUNCATE", "db"),
    ]


def test_what_breaks_the_page_is_malformed_all_the_same() -> None:
    page = transaction(TABLE, insert(1, [1, "x"]))
    with pytest.raises(Malformed):
        rows_of(replace(page, payload=page.payload[:-3]))
