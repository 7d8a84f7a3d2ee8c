"""Where the Cosmos DB feed begins: settings, now, times, tokens; and what the preflight says."""

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.cosmos import CosmosClient
from pydantic import ValidationError

from penstock.feeds.cosmos import CosmosSettings
from penstock.model.errors import InvalidPosition, InvalidStream, SettingsError
from penstock.model.position import Bookmark, bookmarks_to_json
from tests.cosmos.container import StoredContainer
from tests.cosmos.reading import feed_of, ids_of, only, read_pages, settings_of
from tests.cosmos.server import CosmosServer

_EVERY = "all_versions_and_deletes"


@pytest.fixture
def orders(server: CosmosServer) -> StoredContainer:
    return server.container("shop", "orders", "/id")


@pytest.mark.slow
def test_a_time_is_exclusive_and_what_was_read_since_is_resumed(
    server: CosmosServer, orders: StoredContainer
) -> None:
    """The SDK's own continuation of a start at a time cannot be read ("year out of range")."""
    moment = datetime(2026, 1, 1, 12, tzinfo=UTC)
    orders.clock = lambda: (moment + timedelta(seconds=len(orders.log) - 2)).timestamp()
    for n in range(6):
        orders.put({"id": f"i{n}"})
    feed = feed_of(server, start=moment.isoformat(), page_items=2)
    name, begun = only(feed.begin())
    following = feed.follow(name, Bookmark.from_json(begun.to_json()))
    first, second = read_pages(following, 3)
    assert ids_of(feed, [first, second]) == ["i3", "i4", "i5"]
    stored = following.bookmark(first.last)
    assert stored is not None
    assert ids_of(feed, read_pages(feed.follow(name, stored), 1)) == ["i5"]


@pytest.mark.slow
def test_a_continuation_of_the_sdk_is_a_start(
    server: CosmosServer, orders: StoredContainer
) -> None:
    for n in range(4):
        orders.put({"id": f"i{n}"})
    found: list[Any] = []
    client = CosmosClient(server.url, credential=server.key)
    container = client.get_database_client("shop").get_container_client("orders")
    for feed_range in container.read_feed_ranges():
        pages = container.query_items_change_feed(
            feed_range=feed_range,
            start_time="Beginning",
            max_item_count=3,
            response_hook=lambda headers, _: found.append(headers),
        ).by_page()
        next(pages)
    token = found[-1]["etag"]
    feed = feed_of(server, start=token)
    assert ids_of(feed, read_pages(feed.follow(*only(feed.begin())), 1)) == ["i3"]
    with pytest.raises(InvalidPosition, match="mode"):
        feed_of(server, start=token, mode=_EVERY).begin()
    server.container("shop", "orders")
    with pytest.raises(InvalidStream, match="another container"):
        feed_of(server, start=token, page_items=999).begin()


def sdk_start(rid: str, kind: str, parts: list[tuple[str, str, str | None]]) -> str:
    """As `ChangeFeedStateV2.to_dict` has it."""
    listed = [{"token": etag, "range": {"min": low, "max": high, "isMinInclusive": True,
                                        "isMaxInclusive": False}}
              for low, high, etag in parts]  # fmt: skip
    token = {
        "v": "v2",
        "containerRid": rid,
        "mode": "LatestVersion",
        "startFrom": {"Type": kind},
        "continuation": {"v": "v2", "rid": rid, "continuation": listed},
    }
    return base64.b64encode(json.dumps(token).encode()).decode()


def test_a_continuation_of_the_sdk_has_a_token_of_each_range_or_is_of_the_beginning(
    server: CosmosServer, orders: StoredContainer
) -> None:
    """A null is "now" or a time of the past, otherwise, and would be read from the beginning."""
    parts = [("", "20", '"0"'), ("20", "FF", None)]
    for kind in ("Now", "PointInTime"):
        with pytest.raises(InvalidPosition, match="20-FF"):
            feed_of(server, start=sdk_start(orders.rid, kind, parts)).begin()
    begun = feed_of(server, start=sdk_start(orders.rid, "Beginning", parts)).begin()
    assert sorted(begun) == ["0-20", "20-FF"]


@pytest.mark.parametrize("parts", [[("", "20", '"0"')], [("20", "FF", '"0"')],
                                   [("", "10", '"0"'), ("30", "FF", '"0"')]])  # fmt: skip
def test_a_continuation_of_the_sdk_for_some_of_the_keys_is_refused(
    server: CosmosServer, orders: StoredContainer, parts: list[tuple[str, str, str | None]]
) -> None:
    orders.split("20")
    with pytest.raises(InvalidPosition, match="has nothing of"):
        feed_of(server, start=sdk_start(orders.rid, "Beginning", parts)).begin()


def test_a_token_of_ours_is_a_start(server: CosmosServer, orders: StoredContainer) -> None:
    begun = feed_of(server).begin("now")
    token = {"partitions": bookmarks_to_json(begun), "history": orders.rid}
    orders.put({"id": "one"})
    feed = feed_of(server, start=token)
    assert ids_of(feed, read_pages(feed.follow(*only(feed.begin())), 1)) == ["one"]
    with pytest.raises(InvalidStream):
        feed_of(server, start={**token, "history": "another"}).begin()
    damaged = {"0-FF": {"place": "x:1", "mark": None}}
    with pytest.raises(InvalidPosition, match="damaged"):
        feed_of(server, start=damaged).begin()


@pytest.mark.parametrize("start", ["beginning", "2026-01-01T00:00:00Z"])
def test_all_versions_have_no_beginning_and_no_time(server: CosmosServer, start: str) -> None:
    with pytest.raises(ValidationError, match="starts at `now`"):
        settings_of(server, mode=_EVERY, start=start)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"start": "yesterday"}, "beginning, now"),
        ({"start": "2026-01-01T00:00:00"}, "zone"),
        ({"endpoint": "localhost"}, "pattern"),
        ({"mode": "incremental"}, "latest_version"),
        ({"page_items": 0}, "greater"),
        ({"name": "a:b"}, "pattern"),
    ],
)
def test_a_wrong_setting_is_refused(given: dict[str, Any], said: str) -> None:
    document = {"endpoint": "https://h", "database": "d", "container": "c", **given}
    with pytest.raises(ValidationError, match=said):
        CosmosSettings.model_validate(document)


def test_the_key_prints_nowhere(server: CosmosServer) -> None:
    settings = settings_of(server)
    assert server.key not in repr(settings) + str(settings.model_dump()) + repr(feed_of(server))
    with pytest.raises(SettingsError) as raised:
        feed_of(server, key="not base64!").begin()
    assert "not base64!" not in str(raised.value)


def test_a_login_without_a_key_names_the_extra_or_is_entra(server: CosmosServer) -> None:
    """Credentials of Entra ID need https; azure-identity is an extra of its own."""
    findings = feed_of(server, key=None).check()
    assert [each.level for each in findings] == ["error"]
    assert "Entra" in findings[0].message + findings[0].remedy or "https" in findings[0].message


@pytest.mark.slow
def test_the_preflight_finds_what_is_missing(server: CosmosServer, orders: StoredContainer) -> None:
    assert {each.level for each in feed_of(server).check()} == {"ok"}
    (missing,) = feed_of(server, container="none").check()
    assert (missing.level, "container" in missing.remedy) == ("error", True)
    (wrong,) = feed_of(server, key="d3Jvbmc=").check()
    assert (wrong.level, "`key`" in wrong.remedy) == ("error", True)
    server.fail("feed", 400, message="Full Fidelity is not enabled")
    *_, refused = feed_of(server, mode=_EVERY).check()
    assert (refused.level, "continuous backup" in refused.remedy) == ("error", True)
    server.fail("feed", 403, message="RBAC", times=9)
    assert feed_of(server).check()[-1].level == "error"
    server.heal()
    assert feed_of(server, mode=_EVERY).check()[-1].level == "ok"


@pytest.mark.slow
def test_the_preflight_reads_after_a_time_as_the_start_will(
    server: CosmosServer, orders: StoredContainer
) -> None:
    """azure-sdk-for-java, pull 48752: a client of capability 1, as the SDK is, gets this for a
    partition that was merged."""
    feed = feed_of(server, start="2026-11-20T10:00:00Z")
    assert {each.level for each in feed.check()} == {"ok"}
    said = "StartTime/IfModifiedSince is not currently supported with merged"

    def answer(verb: str, path: str, headers: dict[str, str], body: Any) -> Any:
        if "if-modified-since" in headers:
            server.fail("feed", 400, message=f"{said} partitions")
        return asked(verb, path, headers, body)

    asked, server.answer = server.answer, answer  # type: ignore[method-assign]
    *_, refused = feed.check()
    assert (refused.level, said in refused.message) == ("error", True)
    assert "begin at `beginning` or `now`" in refused.remedy
    assert {each.level for each in feed_of(server).check()} == {"ok"}


def test_the_preflight_reads_after_a_saved_bookmark(
    server: CosmosServer, orders: StoredContainer
) -> None:
    feed = feed_of(server)
    name, begun = only(feed.begin())
    assert [each.level for each in feed.check_bookmark(name, begun)] == ["ok"]
    server.container("shop", "orders")
    assert [each.level for each in feed.check_bookmark(name, begun)] == ["error"]
    assert feed.check_bookmark(name, begun._replace(ended=True)) == []
