"""Values that the types of Delta do not have: `on_misfit`."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from penstock.sinks.delta import DeltaSinkSettings
from tests.servers import Database
from tests.sinks.delta.lake import Lake, ordered, same
from tests.sinks.delta.test_verify import pipeline, verified
from tests.sinks.postgres.flow import Flow
from tests.waiting import until

ITEMS = """
CREATE TABLE items (id int PRIMARY KEY, at timestamptz, day date, days date[], n numeric(4,1));
INSERT INTO items VALUES (1, 'infinity', '0044-03-15 BC', '{infinity}', 'NaN'),
    (2, '2026-01-02 03:04:05+00', '2026-01-02', '{2026-01-03}', 2.5)
"""
MORE = """
INSERT INTO items VALUES (3, '-infinity', '12026-01-01', '{2026-01-03,-infinity}', 1),
    (4, '2026-01-04 00:00:00+00', '2026-01-04', '{}', 4)
"""
NAMES = "id, at, day, days, n"
FITS = "CASE WHEN id IN (2, 4) THEN {0} END AS {0}"
WANTED = ", ".join(
    ["id", *(FITS.format(name) for name in ("at", "day", "days")), "nullif(n, 'NaN') AS n"]
)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def nulled(flow: Flow) -> list[str]:
    (row,) = flow.tables()
    return row.get("nulled", [])


@pytest.mark.parametrize("kind", ["clone", "append", "log", "history"])
@pytest.mark.parametrize("buckets", [0, 2])
def test_what_does_not_fit_is_null(database: Database, lake: Lake, kind: str, buckets: int) -> None:
    database.execute(ITEMS)
    sink = {"on_misfit": "null", "buckets": buckets}
    with Flow(database, lake.folder, {"items": {"type": kind}}, sink=sink) as flow:
        flow.loaded()
        assert nulled(flow) == ["at", "day", "days", "n"]
        database.execute(MORE)
        want = ordered(database.execute(f"SELECT {WANTED} FROM items"))
        until(lambda: flow.check() or lake.rows("items", NAMES.split(", ")) == want, 60,
              problem=lambda: (lake.rows("items"), want, flow.states()))  # fmt: skip
    assert not list(flow.letters())


def test_a_key_is_refused_all_the_same(database: Database, lake: Lake) -> None:
    database.execute("CREATE TABLE items (day date PRIMARY KEY, at timestamp)")
    for kind in ("clone", "log"):
        with Flow(
            database, lake.folder / kind, {"items": {"type": kind}}, sink={"on_misfit": "null"},
            on_error="dead-letter", slot=f"keys_{kind}_{database.name}",
        ) as flow:  # fmt: skip
            flow.loaded()
            database.execute("INSERT INTO items VALUES ('infinity', now()), ('2026-01-01', now())")
            until(lambda: flow.check() or len(list(flow.letters())) == 1, 60)
            assert nulled(flow) == []
        database.execute("DELETE FROM items")


def test_dates_and_timestamps_are_texts_of_postgresql(database: Database, lake: Lake) -> None:
    database.execute(ITEMS + "; UPDATE items SET n = 1")
    query = "id, at::text, day::text, days::text[], n"
    with Flow(database, lake.folder, {"items": None}, sink={"on_misfit": "text"}) as flow:
        flow.loaded()
        same(flow, database, lake, "items", query)
        database.execute(MORE)
        same(flow, database, lake, "items", query)
        assert flow.findings() == []
    assert ("infinity", "0044-03-15 BC") in {row[1:3] for row in lake.rows("items")}


def test_a_table_that_is_there_is_written_anew_by_a_reload(database: Database, lake: Lake) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, day date)")
    database.execute("INSERT INTO items VALUES (1, '2026-01-01')")
    with Flow(database, lake.folder, {"items": None}) as flow:
        flow.loaded()
        slot = flow.slot
    database.execute("INSERT INTO items VALUES (2, 'infinity')")
    with Flow(
        database, lake.folder, {"items": None}, sink={"on_misfit": "text"}, slot=slot
    ) as flow:
        until(lambda: flow.check() or "waiting" in dict(flow.states()), 60)
        assert "day is text now, was date" in flow.states()[0][1]
        flow.reload("items")
        same(flow, database, lake, "items", "id, day::text")


@pytest.mark.parametrize(
    ("text", "wanted"), [("null", "null"), ("'null'", "null"), ("text", "text")]
)
def test_null_is_a_word_here(text: str, wanted: str) -> None:
    settings: dict[str, Any] = {
        **yaml.safe_load(f"on_misfit: {text}"), "location": "/lake/{table}",
        "map": [{"backend": "shop", "tables": {"items": {}}}],
    }  # fmt: skip
    assert DeltaSinkSettings.model_validate(settings).on_misfit == wanted
    with pytest.raises(ValidationError, match="'refuse', 'null' or 'text'"):
        DeltaSinkSettings.model_validate({**settings, "on_misfit": "nil"})


@pytest.mark.parametrize("way", ["null", "text"])
def test_verify_takes_them_as_the_table_does(
    database: Database, lake: Lake, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr("penstock.feeds.postgres.slot.settle", lambda *_: None)
    database.execute(ITEMS + "; UPDATE items SET n = 1")
    tables, sink = {"items": {}}, {"on_misfit": way}
    with Flow(database, lake.folder, tables, sink=sink) as flow:
        flow.loaded()
    file, name = pipeline(database, lake, tables, sink), f"shop/flow_{database.name}"
    assert verified(file) == (0, [f"equal {name} public.items -> public.items"])
    lake.table("items").update({"day": "NULL"}, predicate="id = 2")
    assert verified(file, "items", "--repair")[0] == 0
    assert verified(file) == (0, [f"equal {name} public.items -> public.items"])
