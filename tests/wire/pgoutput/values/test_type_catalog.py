import pytest

from penstock.model.errors import Malformed
from penstock.wire.pgoutput.context import TypeEntry
from penstock.wire.pgoutput.values import converter
from penstock.wire.pgoutput.values.type_catalog import ARRAYS, BUILT_IN
from tests.servers import Database

# Types that no column has, or that need privileges and are shown as text.
NOT_COLUMNS = {"pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list",
               "pg_brin_bloom_summary", "pg_brin_minmax_multi_summary", "gtsvector"}  # fmt: skip


@pytest.mark.live
def test_the_catalog_is_the_servers(database_any: Database) -> None:
    rows = database_any.execute(
        "SELECT oid, typname::text, typarray, typdelim::text FROM pg_type"
        " WHERE oid < 10000 AND typtype IN ('b', 'r', 'm') AND typcategory NOT IN ('A', 'P')"
    )
    known = {oid: (name, array) for oid, name, array, _ in rows if name not in NOT_COLUMNS}
    assert {oid: name for oid, (name, _) in known.items() if oid not in BUILT_IN} == {}
    assert {array: oid for oid, (_, array) in known.items() if array} == {
        array: oid for array, oid in ARRAYS.items() if oid in known
    }
    assert [name for _, name, _, delimiter in rows if delimiter != ","] == ["box"]


def test_an_unknown_type_is_text_and_is_named() -> None:
    unknown: set[str] = set()
    assert converter(99_999, {}, "json", unknown)(b"what?") == "what?"
    types = {70_000: TypeEntry(kind="b", name="citext")}
    assert converter(70_000, types, "json", unknown)(b"Hi") == "Hi"
    assert unknown == {"type with OID 99999", "citext"}


@pytest.mark.parametrize("kind", ["e", "c", "r", "m"])
def test_types_that_are_their_text_are_not_unknown(kind: str) -> None:
    unknown: set[str] = set()
    types = {70_000: TypeEntry(kind=kind, name="own")}  # type: ignore[arg-type]
    assert converter(70_000, types, "msgpack", unknown)(b"(1,2)") == "(1,2)"
    assert unknown == set()


def test_domains_and_arrays_lead_to_their_base() -> None:
    types = {
        70_000: TypeEntry(kind="d", name="positive", inner=23),
        70_001: TypeEntry(kind="a", name="_positive", inner=70_000),
        70_002: TypeEntry(kind="d", name="positives", inner=70_001),
    }
    assert converter(70_002, types, "json", set())(b"{1,NULL}") == [1, None]


def test_a_type_that_is_made_of_itself_is_malformed() -> None:
    types = {70_000: TypeEntry(kind="d", name="self", inner=70_000)}
    with pytest.raises(Malformed, match="70000 is defined by itself"):
        converter(70_000, types, "json", set())
