"""What `penstock check` says about a MongoDB source, with remedies."""

import pytest

from penstock.feeds.mongodb import MongoFeed, MongoSettings
from penstock.model.finding import Finding
from tests.mongo import REAL, Shop
from tests.mongodb.reading import feed_of
from tests.mongodb.server import ScriptedMongod
from tests.servers import Secantus


def said(found: list[Finding] | object) -> dict[str, list[Finding]]:
    by_subject: dict[str, list[Finding]] = {}
    assert isinstance(found, list)
    for finding in found:
        by_subject.setdefault(finding.subject, []).append(finding)
    return by_subject


def test_a_server_that_is_fine_has_no_errors(shop: Shop) -> None:
    shop.db.users.insert_one({})
    found = said(shop.feed().check())
    assert set(found) == {"server", "topology", "oplog", "change stream", "collections"}
    assert all(finding.level != "error" for each in found.values() for finding in each)
    assert "1 are followed" in found["collections"][0].message


def test_a_server_that_is_not_there_is_one_finding() -> None:
    feed = MongoFeed(
        MongoSettings.model_validate(
            {
                "connection": "mongodb://me:hunter2@127.0.0.1:1/",
                "database": "shop",
                "connect_timeout": 0.2,
            }
        )
    )
    (finding,) = feed.check()
    assert finding.level == "error"
    assert "start the server" in finding.remedy
    assert "hunter2" not in finding.message


@pytest.mark.skipif(bool(REAL), reason="needs a server that is no replica set")
def test_a_server_of_its_own_is_told_to_become_a_replica_set() -> None:
    with Secantus(options={"standalone": True}) as server:
        feed = MongoFeed(
            MongoSettings.model_validate({"connection": server.url, "database": "shop"})
        )
        finding = said(feed.check())["topology"][0]
    assert finding.level == "error"
    assert "rs.initiate()" in finding.remedy


def test_a_collection_that_is_not_there_is_a_warning(shop: Shop) -> None:
    shop.db.users.insert_one({})
    found = said(shop.feed(collections=["users", "userz"]).check())
    assert [each.level for each in found["collections"]] == ["ok", "warning"]
    assert "userz" in found["collections"][1].message


@pytest.mark.parametrize(
    ("wanted", "level"), [("when_available", "warning"), ("required", "error")]
)
def test_images_that_are_not_kept_are_named(shop: Shop, wanted: str, level: str) -> None:
    shop.db.create_collection("kept", changeStreamPreAndPostImages={"enabled": True})
    shop.db.create_collection("other")
    (finding,) = said(shop.feed(before=wanted).check())["before"]
    assert finding.level == level
    assert "other" in finding.message
    assert "kept" not in finding.message
    assert "collMod" in finding.remedy
    assert "before" not in said(shop.feed(before=wanted, collections=["kept"]).check())


def test_views_are_not_followed(shop: Shop) -> None:
    shop.db.users.insert_one({})
    shop.db.command({"create": "some", "viewOn": "users", "pipeline": []})
    assert shop.feed().tables() == [(shop.name, "users")]


def test_a_tenant_that_updates_do_not_have_is_a_warning(shop: Shop) -> None:
    found = said(shop.feed(tenant="field:team", full_document="off").check())
    assert [each.level for each in found["tenant"]] == ["warning"]
    for fine in ({"full_document": "off", "before": "when_available"}, {}, {"tenant": "none"}):
        assert "tenant" not in said(shop.feed(**{"tenant": "field:team", **fine}).check())


@pytest.mark.skipif(bool(REAL), reason="shows what the listing says, not what a server has")
def test_time_series_are_not_followed(server: ScriptedMongod) -> None:
    """`listCollections` says `type: timeseries`, and its events are of `system.buckets.*`:
    src/mongo/db/timeseries/README.md."""
    server.kinds = {"users": "collection", "weather": "timeseries", "v": "view"}
    assert feed_of(server).tables() == [("shop", "users")]
    found = said(feed_of(server, collections=["users", "weather"]).check())["collections"]
    assert [each.level for each in found] == ["ok", "warning"]
    assert "weather does not exist yet, or is a view or a time series" in found[1].message
