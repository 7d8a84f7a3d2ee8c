"""What a pipeline file may say about a MongoDB source."""

from datetime import UTC, datetime
from typing import Any

import pytest
import yaml

from penstock.feeds.mongodb import MongoFeed, MongoSettings
from penstock.feeds.mongodb.connect import address
from penstock.feeds.mongodb.stream import stages

URL = "mongodb://me:hunter2@h1:1,h2:2/?replicaSet=rs"


def settings(**given: Any) -> MongoSettings:
    return MongoSettings.model_validate({"connection": URL, "database": "shop", **given})


def test_a_bare_off_of_yaml_is_off() -> None:
    given = yaml.safe_load("{before: off, full_document: off}")
    assert given["before"] is False
    found = settings(**given)
    assert (found.before, found.full_document) == ("off", "off")


@pytest.mark.parametrize(
    ("start", "meant"),
    [
        ("now", "now"),
        ("beginning", "beginning"),
        ("2026-11-22T10:00:00Z", datetime(2026, 11, 22, 10, tzinfo=UTC)),
        (datetime(2026, 11, 22, 10, tzinfo=UTC), datetime(2026, 11, 22, 10, tzinfo=UTC)),
        ("2026-11-22T10:00:00+02:00", datetime(2026, 11, 22, 8, tzinfo=UTC)),
        ("8263A1B2C3D4E5F60718", "8263A1B2C3D4E5F60718"),
    ],
)
def test_it_starts_where_it_says(start: Any, meant: Any) -> None:
    found = settings(start=start)
    assert found.begins_at == meant
    assert MongoSettings.model_validate(found.model_dump()) == found


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"start": "yesterday"}, "beginning"),
        ({"start": "2026-11-22T10:00:00"}, "zone"),
        ({"connection": "postgresql://h/d"}, "mongodb://"),
        ({"connection": "mongodb://me:hunter2@h:notaport/"}, "mongodb://"),
        ({"database": "a.b"}, "database"),
        ({"database": ""}, "is missing"),
        ({"database": "", "connection": "mongodb://me:hunter2@h/admin"}, "is missing"),
        ({"tenant": "field:"}, "tenant|field"),
        ({"tenant": "schema"}, "collection_prefix"),
        ({"on_gap": "resnapshot", "full_document": "off"}, "may have no document"),
        ({"start": "snapshot", "full_document": "when_available"}, "may have no document"),
        ({"collections": ["a"], "exclude_collections": ["b"]}, "not both"),
        ({"database": "*", "collections": ["users"]}, "DATABASE.COLLECTION"),
        ({"before": "always"}, "off"),
        ({"page_rows": 0}, "page_rows|greater"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        settings(**wrong)
    assert "hunter2" not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    found = settings()
    assert "hunter2" not in repr(found) + repr(MongoFeed(found))
    assert address(found) == "h1:1,h2:2"


def test_collections_may_be_one_text() -> None:
    assert settings(collections="users, orders").collections == ("users", "orders")


@pytest.mark.parametrize(
    ("given", "stream"),
    [
        ({}, {"fullDocument": "updateLookup"}),
        ({"full_document": "off"}, {}),
        (
            {"full_document": "required", "before": "when_available"},
            {"fullDocument": "required", "fullDocumentBeforeChange": "whenAvailable"},
        ),
        ({"database": "*"}, {"fullDocument": "updateLookup", "allChangesForCluster": True}),
    ],
)
def test_the_stream_is_asked_for_what_the_settings_say(
    given: dict[str, Any], stream: dict[str, Any]
) -> None:
    assert stages(settings(**given), None, split=False)[0] == {"$changeStream": stream}


@pytest.mark.parametrize(
    ("url", "database"),
    [
        ("mongodb://me:hunter2@h1:1,h2:2/shop?replicaSet=rs", "shop"),
        ("mongodb+srv://me:hunter2@cluster.example.net/shop", "shop"),
        ("mongodb://h/my%2Dshop", "my-shop"),
        ("mongodb://h/shop.users?tls=true", "shop"),
    ],
)
def test_the_database_is_the_urls_where_none_is_set(url: str, database: str) -> None:
    found = MongoSettings.model_validate({"connection": url})
    assert found.database == database
    assert MongoSettings.model_validate({"connection": url, "database": "*"}).database == "*"
    assert MongoSettings.model_validate({"connection": url, "database": "b"}).database == "b"


def wanted(**given: Any) -> Any:
    return stages(settings(**given), None, split=False)[1]["$match"]


def test_a_collection_that_gets_a_followed_name_is_wanted() -> None:
    """src/mongo/db/pipeline/change_stream_event_transform.cpp: a rename has `ns` and `to`."""
    out = {"ns.coll": {"$in": ["log"]}}
    renamed = {"operationType": "rename", "$nor": [{"to.coll": {"$in": ["log"]}}]}
    assert wanted(exclude_collections=["log"])["$or"] == [{"$nor": [out]}, renamed]


def test_of_all_databases_those_of_the_listed_collections_may_be_dropped() -> None:
    found = wanted(database="*", collections=["b.users", "a.x", "a.y"])["$or"]
    assert {"operationType": "dropDatabase", "ns.db": {"$in": ["a", "b"]}} in found
    assert {"operationType": "dropDatabase"} in wanted(collections=["x"])["$or"]


def test_expanded_events_are_asked_for_where_the_server_knows_them() -> None:
    found = stages(settings(), None, split=True, expand=True)
    assert found[0]["$changeStream"]["showExpandedEvents"] is True
    kinds = found[1]["$match"]["operationType"]["$in"]
    assert "invalidate" in kinds
    assert "createIndexes" not in kinds


def test_splitting_is_the_last_stage() -> None:
    found = stages(settings(collections=["users"]), None, split=True)
    assert [next(iter(stage)) for stage in found] == [
        "$changeStream", "$match", "$changeStreamSplitLargeEvent",
    ]  # fmt: skip
