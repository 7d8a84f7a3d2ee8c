"""Backends of documents in the map of a sink of tables."""

from typing import Any

import pytest

from penstock.config import Pipeline
from penstock.config.load import build_pipeline
from penstock.model.errors import SettingsError

MONGO = {"type": "mongodb", "connection": "mongodb://h/shop"}
DYNAMO = {"type": "dynamodb", "table": "my.users"}
COSMOS = {"type": "cosmos", "endpoint": "https://h", "database": "shop", "container": "orders"}
CHANGES = {"initial": False}


def build(backend: dict[str, Any], tables: Any, sink: Any = None, **more: Any) -> Pipeline:
    data = {
        "backends": [{"name": "b", **backend}],
        "sink": {
            "type": "delta", "location": "/lake/{schema}/{table}", **(sink or {}),
            "map": [{"backend": "b", "tables": tables}],
        },
        **more,
    }  # fmt: skip
    return build_pipeline(data, name="p", secrets=())


def names(pipeline: Pipeline) -> list[tuple[str, str]]:
    settings: Any = pipeline.sink.settings
    return [(each.source, each.full_target) for each in settings.tables("b")]


def test_tables_have_their_full_names() -> None:
    found = build(MONGO, {"users": None, "shop.orders": {"target": "lake.o"}, "a.b": None})
    assert names(found) == [
        ("shop.users", "shop.users"), ("shop.orders", "lake.o"), ("shop.a.b", "a.b"),
    ]  # fmt: skip
    settings: Any = found.backends[0].settings
    assert settings.collections == ("users", "orders", "a.b")
    found = build({**MONGO, "database": "*"}, {"shop.users": None})
    assert names(found) == [("shop.users", "shop.users")]
    found = build(DYNAMO, {"my.users": None}, snapshot=CHANGES)
    assert names(found) == [("b.my.users", "my.users")]
    found = build(COSMOS, {"orders": None}, snapshot=CHANGES)
    assert names(found) == [("shop.orders", "shop.orders")]


@pytest.mark.parametrize(
    ("backend", "tables", "more", "says"),
    [
        (MONGO, {}, {}, "backend b has no tables in sink.map"),
        (MONGO, {"users": {"type": "history"}}, {}, "write clone or log"),
        (MONGO, {"users": {"columns": ["a"]}}, {}, "have no `columns`"),
        (MONGO, {"users": None, "shop.users": None}, {}, "is there twice"),
        ({**MONGO, "database": "*"}, {"users": None}, {}, "write users of the backend b as"),
        ({**MONGO, "collections": ["a"]}, {"users": None}, {}, "does not follow shop.users"),
        ({**MONGO, "full_document": "off"}, {"users": None}, {}, "write update_lookup, or"),
        (MONGO, {"users": None}, {"sink": {"sid_column": "sid"}}, "leave sink.sid_column out"),
        (MONGO, {"users": {"schema": "a FOO"}}, {}, "FOO is no type that documents have"),
        (MONGO, {"users": {"schema": "a INT, A INT"}}, {}, "or several times: a"),
        (MONGO, {"users": {"schema": "a INT, _operation STRING"}}, {}, "cannot have"),
        (MONGO, {"users": {"schema": "_rest STRING"}}, {}, "declare it as map"),
        (MONGO, {"users": {"schema": "a INT NOT NULL"}}, {}, "may not be null"),
        (MONGO, {"users": {"schema": "a INT"}}, {"sink": {"on_misfit": "x"}}, "on_misfit"),
        (DYNAMO, {"other": None}, {"snapshot": CHANGES}, "it follows b.my.users, and not b.other"),
        ({**COSMOS, "on_gap": "resnapshot"}, {"orders": {"type": "log"}}, {},
         "write on_gap: fail or continue for the backend b"),
        ({"type": "postgres", "connection": "postgresql://h/d", "slot": "s"},
         {"users": {"schema": "a INT"}}, {}, "has a `schema`, which is for documents"),
        ({"type": "memory"}, {"users": None}, {}, "takes the tables of backends of type postgres"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(
    backend: dict[str, Any], tables: Any, more: dict[str, Any], says: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        build(backend, tables, **more)
    assert says in str(refused.value)


def test_other_sinks_of_tables_take_no_documents() -> None:
    data = {
        "backends": [{"name": "b", **MONGO}],
        "sink": {"type": "sqlite", "file": "t.db", "map": [
            {"backend": "b", "tables": {"users": None}}]},
    }  # fmt: skip
    with pytest.raises(SettingsError) as refused:
        build_pipeline(data, name="p", secrets=())
    assert "takes the tables of backends of type postgres, not of mongodb" in str(refused.value)
