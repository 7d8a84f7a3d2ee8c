"""Which changes of a live table are new, and which need another snapshot. Without servers."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import ormsgpack
import pytest

from penstock.consumer.mirror.followed import Followed
from penstock.consumer.mirror.steps import AlterColumns, ForgetLate, RestoreRows
from penstock.consumer.mirror.target_table import TargetColumn, TargetTable
from penstock.model.errors import SettingsError
from penstock.nats.consumers import Delivered
from penstock.tables.fold import ABSENT, Clear, Merge, Move, Recount

TABLE = TargetTable(
    name="t", backend="", schema="public", table="t", target="t", version="v1", relation_id=5,
    columns=(TargetColumn(name="a", data_type="integer"),), key=("a",), state="live",
    cursor="00000000/00000010", sequence=3,
)  # fmt: skip
COLUMNS = (
    {"name": "a", "data_type": "integer", "type": 23, "number": 1, "key": True,
     "has_missing": False, "is_generated": False},
    {"name": "b", "data_type": "text", "type": 25, "number": 2, "key": False,
     "has_missing": False, "is_generated": False},
)  # fmt: skip
SCHEMAS = {
    f"v{n}": {"version": f"v{n}", "columns": COLUMNS[:n], "state": {"last_number": n}}
    for n in (1, 2)
}


def followed(table: TargetTable = TABLE, schemas: Mapping[str, Any] = SCHEMAS) -> Followed:
    target: Any = SimpleNamespace(encoders=lambda _: {})
    catalog: Any = SimpleNamespace(version=lambda _, version: schemas.get(version))
    return Followed(table, target, catalog, dropped="drop")


def message(
    a: int, place: str, sequence: int = 4, headers: Mapping[str, str] | None = None, **body: Any
) -> tuple[Delivered, Mapping[str, Any]]:
    raw = "".join(f"\r\n{name}: {value}" for name, value in (headers or {}).items()).encode()
    row = {"a": a, **({"b": "x"} if body.get("schema_version") == "v2" else {})}
    return Delivered(sequence, "cdc.t", raw), {
        "event_id": place, "operation": "INSERT", "position": place, "key": {"a": a},
        "data": row, "before": None, "unchanged": [], "schema_version": "v1",
        "relation_id": 5, **body,
    }  # fmt: skip


def rows(found: Followed) -> list[Any]:
    steps = [step for _, steps in found.work() for step in steps]
    merged = [row for step in steps if isinstance(step, Merge) for row in step.whole]
    counted = [Counter(step.counts) for step in steps if isinstance(step, Recount)]
    return [*merged, *(row for each in counted for row in each.elements())]


def test_a_change_is_in_the_snapshot_exactly_if_its_cursor_is_before_the_snapshots() -> None:
    found = followed()
    found.add(*message(1, "00000000/0000000F:9"))
    found.add(*message(2, "00000000/00000010:0"))
    found.add(*message(3, "00000000/00000011:0"))
    assert rows(found) == [(2,), (3,)]


@pytest.mark.slow
@pytest.mark.parametrize("key", [("a",), ()])
def test_places_of_many_subjects_are_bounded_where_rows_have_a_key(key: tuple[str, ...]) -> None:
    """A subject for each tenant: what is stored with each batch does not grow with them. Without a
    key a repeated change would be a second row."""
    found = followed(replace(TABLE, key=key))
    for n in range(5000):
        given, body = message(n, f"00000000/{n + 100:08X}:0", sequence=n + 4)
        found.add(given._replace(subject=f"cdc.{n}.t"), body)
        if n % 100 == 99:
            assert len(rows(found)) == 100
    places = found.table.places
    assert len(places) <= 1000 if key else len(places) == 5000
    assert list(places)[-1] == "cdc.4999.t"
    for n in range(4600, 5000):  # the writer repeats what it wrote last
        given, body = message(n, f"00000000/{n + 100:08X}:0", sequence=n + 9000)
        found.add(given._replace(subject=f"cdc.{n}.t"), body)
    assert rows(found) == []


DOCUMENTS = {
    "version": "v1", "documents": True,
    "columns": [{"name": "id", "data_type": "S", "key": True, "is_nullable": False}],
}  # fmt: skip


def item(key: str, shard: str, number: int) -> tuple[Delivered, Mapping[str, Any]]:
    """Of a table of DynamoDB, whose shards have no common order."""
    place = f"{number:040}:0"
    headers = {"Penstock-Position": f"default {shard} {place}"}
    known = {"key": {"id": key}, "data": {"id": key, "n": number}, "relation_id": None}
    return message(0, place, headers=headers, schema_version=None, **known)


def test_a_change_that_comes_again_is_one_of_its_own_shard() -> None:
    table = replace(TABLE, cursor="0" * 40, relation_id=None).with_schema(DOCUMENTS)
    found = followed(table)
    for key, shard, number in (
        ("a", "1", 500), ("b", "2", 400), ("a", "1", 500), ("c", "1", 499), ("d", "2", 401),
    ):  # fmt: skip
        found.add(*item(key, shard, number))
    assert sorted(rows(found)) == [
        (f'"{key}"', {"id": key, "n": number})
        for key, number in (("a", 500), ("b", 400), ("d", 401))
    ]


def test_places_of_shards_that_have_ended_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.consumer.mirror.followed._STREAMS", 3)
    found = followed(replace(TABLE, cursor="", relation_id=None).with_schema(DOCUMENTS))
    for shard in ("1", "2", "3", "1", "4", "5"):
        found.add(*item("a", shard, found.changes))
    found.work()
    assert [name.rpartition(" ")[2] for name in found.table.places] == ["1", "4", "5"]


def test_messages_that_were_applied_and_changes_that_come_twice_are_passed_over() -> None:
    found = followed(replace(TABLE, key=()))
    found.add(*message(1, "00000000/00000020:0", sequence=3))
    for place in ("00000000/00000020:9", "00000000/00000020:10", "00000000/00000020:9"):
        found.add(*message(2, place))
    assert rows(found) == [(2,), (2,)]
    again = followed(found.table)
    again.add(*message(3, "00000000/00000020:10", sequence=9))
    assert rows(again) == []


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"operation": "SUSPEND"}, "suspended"),
        ({"headers": {"Penstock-Replayed": "x"}}, "dead letter"),
        ({"relation_id": 6}, "made again"),
        ({"schema_version": "v9"}, "does not have its version v9"),
        ({"schema_version": None, "data": {"a": 1, "new": 2}}, "other columns"),
    ],
)
def test_what_cannot_be_applied_is_stored_as_a_table_to_be_loaded(
    given: dict[str, Any], problem: str
) -> None:
    found = followed()
    found.add(*message(1, "00000000/00000020:0"))
    found.add(*message(2, "00000000/00000021:0", **given))
    found.add(*message(3, "00000000/00000022:0"))
    assert problem in found.problem
    work = found.work()
    assert [step for _, steps in work for step in steps] == [Merge(whole=[(1,)])]
    assert (work[-1][0].state, work[-1][0].snapshot_id) == ("loading", "")


LAYOUT = {"Penstock-Schema": "1", "Penstock-Table-Schema": "v1"}


def packed(
    a: int, place: str, headers: Mapping[str, str] = LAYOUT, **body: Any
) -> tuple[Delivered, Mapping[str, Any]]:
    given, made = message(a, place, headers={**headers, "x": ""}, **body)
    made = {"backend": "default", "schema": "public", "collection": "t", **made}
    made = {"committed_at": None, **made}
    return given._replace(payload=ormsgpack.packb(made)), made


def test_plain_changes_lead_to_the_same_rows() -> None:
    """Also one that comes again, and one of before the snapshot."""
    plain, other = followed(), followed()
    given = [packed(n, f"00000000/{n:08X}:0") for n in (32, 33, 33, 1, 34, 32)]
    assert [one.add(*given[0]) for one in (plain, other)] == [True, True]
    for one, body in given[1:]:
        (change,) = plain.plain(one)
        plain.put(one, change)
        other.add(one, body)
    assert rows(plain) == rows(other) == [(32,), (33,), (34,)]
    assert plain.changes == other.changes == 3


@pytest.mark.parametrize(
    "given",
    [
        {"operation": "DELETE", "data": None, "before": {"a": 2}},
        {"operation": "TRUNCATE", "data": None},
        {"operation": "UPDATE", "before": {"a": 1}},
        {"operation": "UPDATE", "unchanged": ["b"]},
        {"data": {}},
        {"relation_id": 6},
        {"schema_version": "v2"},
        {"backend": "second"},
        {"collection": "t2"},
        {"headers": {"Penstock-Schema": "debezium-1"}},
        {"headers": {}},
        {"headers": {**LAYOUT, "Penstock-Replayed": "x"}},
        {"headers": {**LAYOUT, "Content-Encoding": "zstd"}},
    ],
)
def test_other_changes_are_not_plain(given: dict[str, Any]) -> None:
    found = followed()
    assert found.add(*packed(1, "00000000/00000020:0"))
    assert found.plain(packed(2, "00000000/00000021:0")[0])
    assert not found.plain(packed(2, "00000000/00000021:0", **given)[0])


@pytest.mark.parametrize("payload", [b"", b"{}", b"\x80", b"\xc1", b"\xff\xff\xff\xff"])
def test_what_is_no_change_of_messagepack_is_not_plain(payload: bytes) -> None:
    found = followed()
    found.add(*packed(1, "00000000/00000020:0"))
    given = packed(2, "00000000/00000021:0")[0]
    assert not found.plain(given._replace(payload=payload))


def test_nothing_is_plain_until_a_change_of_the_new_columns_was_added() -> None:
    found = followed()
    second = {"schema_version": "v2", "operation": "DELETE", "data": None, "before": {"a": 1}}
    assert found.add(*packed(1, "00000000/00000020:0"))
    assert not found.add(*packed(1, "00000000/00000021:0", **second))
    assert not found.plain(packed(2, "00000000/00000022:0")[0])
    assert found.add(*packed(2, "00000000/00000022:0", schema_version="v2"))
    assert found.plain(packed(3, "00000000/00000023:0", schema_version="v2")[0])


@pytest.mark.parametrize(
    ("table", "payload"),
    [(replace(TABLE, key=()), b""), (replace(TABLE, last_point="1"), b""), (TABLE, b"{}")],
)
def test_tables_without_a_key_half_restored_ones_and_json_have_no_plain_changes(
    table: TargetTable, payload: bytes
) -> None:
    given, body = packed(1, "00000000/00000020:0")
    assert not followed(table).add(given._replace(payload=payload or given.payload), body)


def test_columns_come_between_the_rows_before_and_after_them() -> None:
    found = followed()
    found.add(*message(1, "00000000/00000020:0"))
    found.add(*message(2, "00000000/00000021:0", schema_version="v2"))
    work = found.work()
    assert [(table.names, list(steps)) for table, steps in work] == [
        (("a",), [Merge(whole=[(1,)])]),
        (("a", "b"), [AlterColumns([TargetColumn(name="b", data_type="text")], [])]),
        (("a", "b"), [Merge(whole=[(2, "x")])]),
    ]


def test_rows_that_changes_name_are_restored_until_the_snapshots_last_point() -> None:
    """A chunk has key 1 as X with TX; it moves to 9, another row comes under 1, and a later chunk
    has both: the TX of key 9 cannot be had from the row that is under 1 now."""
    wide = replace(TABLE, columns=(*TABLE.columns, TargetColumn(name="large", data_type="text")))
    moved = {"operation": "UPDATE", "before": {"a": 1}, "unchanged": ["large"]}
    found = followed(replace(wide, last_point="00000000/00000020"))
    found.add(*message(9, "00000000/0000001F:0", **moved))
    found.add(*message(3, "00000000/0000001F:1", operation="DELETE", before={"a": 3}))
    (before,) = found.work()
    assert (before[0].has_several_points, before[1][-1]) == (True, RestoreRows([(1,), (9,), (3,)]))
    found.add(*message(3, "00000000/0000001F:2", operation="TRUNCATE"))
    found.add(*message(9, "00000000/00000020:0", **moved))
    *earlier, last = found.work()
    assert [step for _, steps in earlier for step in steps] == [
        Clear(), RestoreRows(None), ForgetLate(),
    ]  # fmt: skip
    assert (last[0].has_several_points, last[1]) == (False, [Move((1,), (9, ABSENT))])


def test_columns_that_change_before_the_snapshots_last_point_lead_to_another() -> None:
    found = followed(replace(TABLE, last_point="00000000/00000020"))
    found.add(*message(2, "00000000/0000001F:0", schema_version="v2"))
    assert found.problem.startswith("its columns changed")


def test_columns_in_another_order_are_other_columns() -> None:
    """`b` was dropped and added again: its old values are gone."""
    columns = tuple(TargetColumn(name=name, data_type="text") for name in "abc")
    table = replace(TABLE, columns=columns)
    schemas = {
        version: {"version": version, "columns": [
            {"name": name, "data_type": "text", "key": name == "a", "number": number}
            for name, number in numbers.items()
        ]}
        for version, numbers in (
            ("v1", {"a": 1, "b": 2, "c": 3}), ("v2", {"a": 1, "c": 3, "b": 4}),
        )
    }  # fmt: skip
    found = followed(table, schemas)
    found.add(*message(1, "00000000/00000021:0", schema_version="v2"))
    assert found.problem.startswith("its columns changed")


def test_a_layout_without_positions_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"no position.*sink\.layout"):
        followed().add(*message(1, "", position=None))


def test_tables_that_were_stored_before_can_be_read() -> None:
    """What a table calls its last point has another name in mirrors' databases."""
    stored = replace(TABLE, last_point="00000000/00000020").to_json()
    assert (stored["settled"], "last_point" in stored) == ("00000000/00000020", False)
    assert TargetTable.from_json(stored).last_point == "00000000/00000020"
