"""Whole histories of real servers: what they decode to, whichever way they are cut."""

from collections import defaultdict
from functools import cache
from typing import Any

import orjson
import pytest

from penstock.model.change import Images
from penstock.model.page import Page
from penstock.wire.pgoutput.decoder import DecoderSettings, PgoutputDecoder
from tests.wire.golden import Golden, golden, names, pages
from tests.wire.kinds import KINDS, Kind
from tests.wire.reference import image, reference

NAMES = [name for name in names() if "two-phase" not in name]
IMAGES: list[Images] = ["json", "msgpack"]
Row = dict[str, Any]


@cache
def source(name: str) -> Golden:
    return golden(name)


def decoded(cut: list[Page], images: Images) -> list[Row]:
    decoder = PgoutputDecoder(DecoderSettings(backend="b", database="db", images=images))
    rows = [row for page in cut for batch in decoder.decode(page) for row in batch.to_pylist()]
    for row in rows:
        for name in ("key", "before", "after"):
            row[name] = image(row[name], images)
    assert decoder.unknown_types == set()
    return rows


@cache
def history(name: str, images: Images) -> list[Row]:
    return decoded(pages(source(name)), images)


def of_table(name: str, table: str, images: Images = "json") -> list[Row]:
    return [row for row in history(name, images) if row["collection"] == table]


@pytest.mark.slow
@pytest.mark.parametrize("images", IMAGES)
@pytest.mark.parametrize("name", NAMES)
def test_the_fast_path_agrees_with_the_messages(name: str, images: Images) -> None:
    expected = [row for page in pages(source(name)) for row in reference(page, images)]
    found = history(name, images)
    assert len(found) == len(expected)
    for row, wanted in zip(found, expected, strict=True):
        at = row.pop("committed_at")
        moment = None if at is None else int(at.timestamp() * 1_000_000 + 0.5)
        comparable = {field: row[field] for field in wanted if field != "committed_at"}
        assert comparable | {"committed_at": moment} == wanted
        row["committed_at"] = at


@pytest.mark.slow
@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 2, 7, 50])
@pytest.mark.parametrize("name", ["pg15-v1", "pg16-v2"])
def test_cutting_pages_anywhere_gives_the_same_changes(name: str, size: int) -> None:
    assert decoded(pages(source(name), size), "json") == history(name, "json")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_event_ids_are_unique_and_in_order(name: str) -> None:
    rows = history(name, "json")
    ids = [row["event_id"] for row in rows]
    assert len(set(ids)) == len(ids)
    assert all(row["event_id"] == f"b:{row['cursor']}:{row['ordinal']}" for row in rows)
    outside = {row["event_id"] for row in rows if row["transaction"] is None}
    places = [(r["cursor"], r["ordinal"]) for r in rows if r["event_id"] not in outside]
    assert places == sorted(places)


@pytest.mark.slow
@pytest.mark.parametrize("images", IMAGES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_of_value_arrives(kind: Kind, images: Images) -> None:
    wanted = kind.json if images == "json" else kind.as_msgpack
    for name in NAMES:
        if not kind.known_to(source(name).version):
            continue
        row, nulls = of_table(name, "kinds", images)
        assert nulls["after"][kind.name] is None
        if wanted is not ...:
            value = row["after"][kind.name]
            assert value == wanted
            assert type(value) is type(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_json_is_spliced_digit_by_digit(name: str) -> None:
    decoder = PgoutputDecoder(DecoderSettings(backend="b", database="db"))
    rows = [row for page in pages(source(name)) for row in decoder.decode(page)[0].to_pylist()]
    text = next(row["after"] for row in rows if row["collection"] == "kinds")
    for written in (
        '"json":{"b": [1, null], "a": 1.50}',
        '"json_huge":"[1e400, 18446744073709551616, 1e-400]"',
        '"jsonb":{"i": 9007199254740993, "n": 12345678901234567890.5}',
        r'"json_surrogate":"\"\\ud800\""',
        '"int8":9223372036854775807',
    ):
        assert written in text


@pytest.mark.parametrize("name", NAMES)
def test_following_the_changes_gives_the_tables(name: str) -> None:
    """A consumer that applies every change ends with what the server had."""
    tables: dict[str, dict[Any, Row]] = defaultdict(dict)
    for row in history(name, "json"):
        table = tables[row["collection"]]
        match row["operation"]:
            case "TRUNCATE":
                table.clear()
            case "DELETE":
                table.pop(identity(row["before"], row["key"]))
            case "INSERT":
                table[identity(row["after"], row["key"])] = row["after"]
            case "UPDATE":
                before = row["before"] if row["before"] is not None else row["after"]
                names = row["key"] or before
                old = table.pop(orjson.dumps([before[column] for column in names]))
                assert set(row["unchanged"]) == set(old) - set(row["after"])
                table[identity({**old, **row["after"]}, row["key"])] = {**old, **row["after"]}
    for table, wanted in source(name).tables.items():
        rows = list(tables[table].values())
        if table == "large":
            assert len(rows) == wanted
        elif table != "changing":  # its rows were written under six shapes
            assert sorted(map(orjson.dumps, map(ordered, rows))) == sorted(
                map(orjson.dumps, map(ordered, wanted))
            )


def ordered(row: Row) -> list[Any]:
    return sorted(row.items())


def identity(row: Row, key: Row | None) -> bytes:
    """The old or new key of a row; without a key, all of it."""
    return orjson.dumps([row[column] for column in key or row])


@pytest.mark.parametrize("name", NAMES)
def test_each_row_is_decoded_under_the_relation_it_was_sent_with(name: str) -> None:
    assert [row["after"] for row in of_table(name, "changing")] == [
        {"id": 1, "v": "a"},
        {"id": 2, "v": "b", "extra": 5},
        {"id": 3, "w": "c", "extra": 6},
        {"id": 4, "extra": 7},
        {"id": 5, "extra": "text"},
    ]


@pytest.mark.parametrize("name", NAMES)
def test_unchanged_toast_is_named_and_not_null(name: str) -> None:
    _, plain, with_key = of_table(name, "toasted")
    assert plain["after"] == {"id": 1, "v": 2}
    assert plain["unchanged"] == ["big"]
    assert plain["before"] is None
    assert with_key["after"] == {"id": 2, "v": 2}
    assert with_key["unchanged"] == ["big"]
    assert with_key["before"] == {"id": 1}
    assert (with_key["key"], with_key["document_id"]) == ({"id": 2}, "2")


@pytest.mark.parametrize("name", NAMES)
def test_an_unchanged_toasted_key_comes_from_the_old_row(name: str) -> None:
    insert, update, delete = of_table(name, "toasted_key")
    assert len(insert["document_id"]) > 2000
    assert update["operation"] == "UPDATE"
    assert update["document_id"] == delete["document_id"] == insert["document_id"]


@pytest.mark.parametrize("name", NAMES)
def test_full_identity_sends_the_old_row_and_toast_in_it(name: str) -> None:
    _, update, key_change, delete = of_table(name, "toasted_full")
    assert update["before"] == {"id": 1, "big": "y" * 9000, "v": 1}
    assert key_change["key"] == {"id": 2}
    assert key_change["before"]["id"] == 1
    assert delete["document_id"] == "2"


@pytest.mark.parametrize("name", NAMES)
def test_every_replica_identity_gives_the_key_it_has(name: str) -> None:
    def keys(table: str) -> list[Any]:
        rows = of_table(name, table)
        return [(row["operation"], row["key"], row["before"]) for row in rows]

    assert keys("by_default")[2:5] == [
        ("UPDATE", {"id": 1}, None),
        ("UPDATE", {"id": 3}, {"id": 2}),
        ("DELETE", {"id": 3}, {"id": 3}),
    ]
    assert keys("by_index") == [
        ("INSERT", {"a": 1, "b": "x"}, None),
        ("INSERT", {"a": 2, "b": "y"}, None),
        ("UPDATE", {"a": 1, "b": "x"}, None),
        ("UPDATE", {"a": 2, "b": "z"}, {"a": 2, "b": "y"}),
        ("DELETE", {"a": 1, "b": "x"}, {"a": 1, "b": "x"}),
    ]
    assert keys("by_full")[2:] == [
        ("UPDATE", {"id": 1}, {"id": 1, "v": "a"}),
        ("DELETE", {"id": 2}, {"id": 2, "v": None}),
    ]
    assert keys("by_full_no_key")[2:] == [
        ("UPDATE", None, {"v": "a", "n": 1}),
        ("DELETE", None, {"v": None, "n": None}),
    ]
    assert keys("by_nothing") == [("INSERT", None, None)]
    assert {row["document_id"] for row in of_table(name, "by_nothing")} == {None}
    assert [row["document_id"] for row in of_table(name, "by_two")] == [
        '["k",1]', '["k",1]', '["k",2]', '["k",2]',
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_truncate_is_one_change_for_each_table(name: str) -> None:
    rows = [row for row in history(name, "json") if row["operation"] == "TRUNCATE"]
    assert sorted((row["collection"], row["ordinal"]) for row in rows) == [
        ("emptied_a", 0), ("emptied_b", 1),
    ]  # fmt: skip
    assert all(row["key"] is row["before"] is row["after"] is None for row in rows)


@pytest.mark.parametrize("name", NAMES)
def test_logical_messages_are_changes_and_heartbeats_are_not(name: str) -> None:
    rows = {row["collection"]: row for row in history(name, "msgpack") if row["namespace"] is None}
    inside, outside = rows["inside"], rows["outside"]
    assert inside["after"] == {"prefix": "inside", "content": "text é"}
    assert inside["transaction"] is not None
    assert outside["after"] == {"prefix": "outside", "content": b"\xff\x00", "binary": True}
    assert outside["transaction"] is outside["committed_at"] is None
    assert outside["ordinal"] == 0
    assert set(rows) <= {"inside", "outside", "big"}
    beats = [row for row in of_table(name, "by_default") if row["document_id"] == "10"]
    assert [row["ordinal"] for row in beats] == [0]


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("v2")])
def test_streamed_transactions_come_whole_and_without_what_was_rolled_back(name: str) -> None:
    rows = of_table(name, "large")
    by_transaction = defaultdict(list)
    for row in rows:
        by_transaction[row["transaction"]].append(row)
    sizes = [len(each) for each in by_transaction.values()]
    assert sizes == [100, 602, 710]
    for each in by_transaction.values():
        assert len({row["cursor"] for row in each}) == 1
    ids = [row["after"]["id"] for row in list(by_transaction.values())[2]]
    assert ids == [*range(5001, 5601), *range(6001, 6111)]
    ordinals = [row["ordinal"] for row in list(by_transaction.values())[2]]
    assert ordinals == list(range(710))


@pytest.mark.parametrize("name", NAMES)
def test_a_partitioned_table_arrives_as_its_root(name: str) -> None:
    (row,) = of_table(name, "parted")
    assert (row["operation"], row["key"]) == ("INSERT", {"id": 1})
    assert of_table(name, "parted_low") == []
