"""Several databases of a real server as one backend: each has its slot, publication and ids."""

import pickle
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from penstock.feeds import Following, Gap, HistoryLost
from penstock.feeds.postgres import PostgresFeed, PostgresSettings
from penstock.feeds.postgres.sources import PostgresSources
from penstock.model.errors import SettingsError, Unavailable
from penstock.model.page import Page
from penstock.model.position import START, Bookmark, PartitionId
from penstock.reading.gaps import GapLog
from penstock.reading.reservoir import Reservoir
from tests.feeds.postgres.story import patiently
from tests.servers import Database, Postgres
from tests.waiting import until

EU, US = PartitionId("eu"), PartitionId("us")
GONE, MUTE = PartitionId("gone"), PartitionId("mute")
REFUSED = "postgresql://127.0.0.1:1/gone"

Row = dict[str, Any]


class Shops:
    """Databases, by sid, that are the sources of one backend."""

    def __init__(self, databases: Mapping[PartitionId, Database]) -> None:
        self.databases = dict(databases)
        self.name = databases[EU].name  # a server's slots have one name space

    def feed(self, *, others: Mapping[str, str] | None = None, **settings: Any) -> PostgresSources:
        """`others`: connections of more sources."""
        urls = {sid: each.url for sid, each in self.databases.items()} | dict(others or {})
        return PostgresSources(
            PostgresSettings.model_validate({
                "name": self.name, "silence": 60, "tables": ["items"],
                "sources": [{"sid": sid, "connection": url} for sid, url in urls.items()],
                **settings,
            })
        )  # fmt: skip

    def execute(self, statement: str, *sids: PartitionId) -> None:
        """In all of them, or in those."""
        for sid in sids or self.databases:
            self.databases[sid].execute(statement)

    def published(self, sid: PartitionId) -> list[str]:
        """The tables of the source's publication."""
        rows = self.databases[sid].execute(
            "SELECT tablename FROM pg_publication_tables WHERE pubname = %s ORDER BY 1",
            (f"penstock_{self.name}_{sid}",),
        )
        return [name for (name,) in rows]

    def slot(self, sid: PartitionId) -> tuple[str, str, bool] | None:
        """Name, confirmed place and whether it is read, of the only slot of a source."""
        rows = self.databases[sid].execute(
            "SELECT slot_name, confirmed_flush_lsn::text, active FROM pg_replication_slots"
            " WHERE database = current_database()"
        )
        return rows[0] if rows else None  # type: ignore[return-value]

    def unpublish(self, sid: PartitionId) -> None:
        """Drops the source's publication."""
        self.databases[sid].execute(f'DROP PUBLICATION "penstock_{self.name}_{sid}"')


@pytest.fixture
def shops(postgres: Postgres) -> Iterator[Shops]:
    """Two, with the table items in both."""
    with postgres.database() as eu, postgres.database() as us:
        made = Shops({EU: eu, US: us})
        made.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
        yield made


@contextmanager
def following(
    feed: PostgresFeed | PostgresSources,
    sid: PartitionId,
    bookmark: Bookmark = START,
    despite: Sequence[Gap] = (),
) -> Iterator[Following]:
    found = patiently(lambda: feed.follow(sid, bookmark, despite=despite))
    try:
        yield found
    finally:
        found.close()


def pages_of(reading: Following, count: int) -> list[Page]:
    """The pages of the next `count` changes."""
    pages: list[Page] = []

    def come() -> bool:
        pages.extend(reading.read(0.1))
        return sum(page.count for page in pages) >= count

    until(come, 60)
    return pages


def rows_of(feed: PostgresFeed | PostgresSources, pages: Sequence[Page]) -> list[Row]:
    decoder = feed.decoder("json")
    return [row for page in pages for batch in decoder.decode(page) for row in batch.to_pylist()]


def read(
    feed: PostgresFeed | PostgresSources, sid: PartitionId, count: int, *where: Any
) -> list[Row]:
    """The next `count` changes of a source, after a bookmark, despite gaps."""
    with following(feed, sid, *where) as reading:
        return rows_of(feed, pages_of(reading, count))


def test_each_source_gets_a_slot_and_a_publication_of_the_tables_that_it_has(shops: Shops) -> None:
    shops.execute("CREATE TABLE extras (id int PRIMARY KEY)", US)
    feed = shops.feed(tables=["items", "extras"])
    assert set(feed.begin()) == {EU, US}
    assert (shops.published(EU), shops.published(US)) == (["items"], ["extras", "items"])
    for sid in (EU, US):
        slot = shops.slot(sid)
        assert slot is not None
        assert (slot[0], slot[2]) == (f"penstock_{shops.name}_{sid}", False)
    before = [shops.slot(sid) for sid in (EU, US)]
    feed.begin()
    assert [shops.slot(sid) for sid in (EU, US)] == before


def test_a_publication_follows_its_tables(shops: Shops) -> None:
    shops.execute(
        "CREATE TABLE extras (id int PRIMARY KEY);"
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20);"
        "CREATE TABLE parts_x (id int PRIMARY KEY)"
    )
    begun = shops.feed().begin()
    leaves = shops.feed(tables=["items", "public.~parts_[0-9]+"])
    with following(leaves, EU, begun[EU]) as reading:
        assert shops.published(EU) == ["items", "parts_1", "parts_2"]
        assert shops.published(US) == ["items"]  # it was not followed yet
        shops.execute("INSERT INTO parts VALUES (1), (11); INSERT INTO items VALUES (1)")
        rows = rows_of(leaves, pages_of(reading, 3))
    assert [row["collection"] for row in rows] == ["parts_1", "parts_2", "items"]
    after = Bookmark(None, begun[EU].mark)
    for tables, published in (
        (["parts"], ["parts"]), (["none"], []), (["none", "other"], []), (["extras"], ["extras"]),
    ):  # fmt: skip
        with following(shops.feed(tables=tables), EU, after):
            assert shops.published(EU) == published
    whole = shops.feed(tables=["parts"])
    with following(whole, US, begun[US]) as reading:
        shops.execute("INSERT INTO parts VALUES (2), (12)", US)
        rows = rows_of(whole, pages_of(reading, 3))  # and the item from before, which it left
    assert [row["collection"] for row in rows] == ["items", "parts", "parts"]


def test_a_slot_without_its_publication_is_made_anew_at_the_beginning(shops: Shops) -> None:
    feed = shops.feed()
    feed.begin()
    before = shops.slot(US)
    shops.unpublish(EU)
    shops.execute("INSERT INTO items VALUES (1)")
    begun = feed.begin()
    assert shops.published(EU) == ["items"]
    shops.execute("INSERT INTO items VALUES (2)")
    assert [row["key"] for row in read(feed, EU, 1, begun[EU])] == ['{"id":2}']
    assert shops.slot(US) == before
    assert len(read(feed, US, 2, begun[US])) == 2


def test_a_publication_that_is_gone_is_a_gap_of_its_source(shops: Shops) -> None:
    feed = shops.feed(on_gap="continue")
    begun = feed.begin()
    shops.execute("INSERT INTO items VALUES (1)")
    with following(feed, EU, begun[EU]) as reading:
        (page,) = pages_of(reading, 1)
        saved = reading.bookmark(page.last)
    assert saved is not None
    shops.unpublish(EU)
    shops.execute("INSERT INTO items VALUES (2)")
    with pytest.raises(HistoryLost) as caught:
        patiently(lambda: feed.follow(EU, saved))
    gap = caught.value.gap
    assert (gap.cause, gap.after, gap.policy) == ("publication_missing", str(page.last), "continue")
    assert shops.published(EU) == []  # looking has made nothing
    with following(feed, EU, saved, [gap]) as reading:
        shops.execute("INSERT INTO items VALUES (3)")
        rows = rows_of(feed, pages_of(reading, 1))
    assert [row["key"] for row in rows] == ['{"id":3}']
    assert rows[0]["cursor"] > page.last.cursor
    assert len(read(feed, US, 3, begun[US])) == 3


def test_a_publication_that_goes_while_it_is_read_is_passed(shops: Shops) -> None:
    feed = shops.feed(on_gap="continue")
    begun, gaps = feed.begin(), GapLog()
    with flowing(feed, begun, gaps) as flow:
        shops.execute("INSERT INTO items VALUES (1)")
        until(lambda: flow.ids(EU) == [1] == flow.ids(US))
        shops.unpublish(EU)
        shops.execute("INSERT INTO items VALUES (2)")
        until(lambda: shops.published(EU) == ["items"] and flow.row(EU)["connected"])
        shops.execute("INSERT INTO items VALUES (3)")
        until(lambda: flow.ids(EU) == [1, 3] and flow.ids(US) == [1, 2, 3])
    assert [each["cause"] for each in gaps.rows()[EU]["gaps"]] == ["publication_missing"]
    assert US not in gaps.rows()


def test_event_ids_name_their_source_and_stay(shops: Shops) -> None:
    feed = shops.feed()
    begun = feed.begin()
    shops.execute("INSERT INTO items VALUES (1, 'a'), (2, 'b'); DELETE FROM items WHERE id = 1")
    for sid in (EU, US):
        rows = read(feed, sid, 3, begun[sid])
        found = [row["event_id"] for row in rows]
        assert found == [f"{shops.name}:{sid}:{row['cursor']}:{row['ordinal']}" for row in rows]
        copy = pickle.loads(pickle.dumps(feed))
        assert [row["event_id"] for row in read(copy, sid, 3, begun[sid])] == found


def test_event_ids_of_one_connection_have_no_source(shops: Shops) -> None:
    settings: dict[str, Any] = {
        "name": shops.name, "connection": shops.databases[EU].url, "tables": ["items"],
    }  # fmt: skip
    for sid, prefix in ("", shops.name), ("eu", f"{shops.name}:eu"):
        feed = PostgresFeed(PostgresSettings.model_validate({**settings, "sid": sid}))
        ((partition, bookmark),) = feed.begin().items()
        shops.execute("TRUNCATE items; INSERT INTO items VALUES (1)", EU)
        rows = read(feed, partition, 2, bookmark)
        assert [row["event_id"] for row in rows] == [
            f"{prefix}:{row['cursor']}:{row['ordinal']}" for row in rows
        ]


def test_pages_of_all_sources_are_decoded_by_one_decoder_that_pickles(shops: Shops) -> None:
    feed = shops.feed()
    begun = feed.begin()
    shops.execute("INSERT INTO items VALUES (1, 'a')", EU)
    shops.execute("INSERT INTO items VALUES (1, 'b')", US)
    pages: list[Page] = []
    for sid in (EU, US):
        with following(feed, sid, begun[sid]) as reading:
            pages += pages_of(reading, 1)
    for images, expected in (
        ("json", ['{"id":1,"note":"a"}', '{"id":1,"note":"b"}']), ("text", None),
    ):  # fmt: skip
        decoder = feed.decoder(images)  # type: ignore[arg-type]
        copy = pickle.loads(pickle.dumps(decoder))
        found = [decoder.decode(page) for page in pages]
        assert [copy.decode(page) for page in pages] == found
        assert all(a.schema.metadata == b.schema.metadata
                   for page, batches in zip(pages, found, strict=True)
                   for a, b in zip(feed.of(page.partition).decoder(images).decode(page),  # type: ignore[arg-type]
                                   batches, strict=True))  # fmt: skip
        rows = [row for batches in found for each in batches for row in each.to_pylist()]
        assert len({row["event_id"] for row in rows}) == 2
        assert all(row["after"] for row in rows)
        assert expected is None or [row["after"] for row in rows] == expected
    fewer = shops.feed()
    del fewer._feeds[US]
    with pytest.raises(SettingsError, match="no source us"):
        fewer.decoder("json").decode(pages[1])


def test_what_is_asked_of_all_names_the_source(shops: Shops) -> None:
    shops.execute("CREATE TABLE extras (id int PRIMARY KEY, more text)", US)
    feed = shops.feed(tables=["items", "extras"], others={GONE: REFUSED})
    feed.begin()
    assert feed.tables() == [("public", "extras"), ("public", "items")]
    assert [(each.table, len(each.columns)) for each in feed.schemas()] == [
        ("items", 2), ("extras", 2),
    ]  # fmt: skip
    findings = feed.check()
    assert {each.subject.split(":")[0] for each in findings} == {
        "source eu", "source us", "source gone",
    }  # fmt: skip
    wrong = [each.subject for each in findings if each.level == "error"]
    assert wrong == ["source eu: table public.extras", "source gone: server"]
    with pytest.raises(SettingsError, match="no source other"):
        feed.of("other")


def test_a_reader_is_known_by_its_source_and_can_be_evicted(shops: Shops) -> None:
    feed = shops.feed()
    assert feed.holders() == []
    begun = feed.begin()
    with following(feed, US, begun[US]) as reading:
        (holder,) = feed.holders()
        assert holder.partition == US
        with pytest.raises(Unavailable, match=r"source us: the slot .* in use"):
            feed.follow(US, begun[US])
        feed.evict(holder)
        with pytest.raises(Unavailable, match="source us: "):
            while True:
                reading.read(0.1)
    until(lambda: feed.holders() == [])


class Flow:
    """A reservoir over all sources, from which nothing is released."""

    def __init__(self, feed: PostgresSources, reservoir: Reservoir) -> None:
        self._decoder, self._reservoir = feed.decoder("json"), reservoir

    def ids(self, sid: PartitionId) -> list[int]:
        """Of the items that came from a source."""
        with self._reservoir.wake:
            pages = list(self._reservoir.beyond(sid, None))
        batches = [batch for page in pages for batch in self._decoder.decode(page)]
        keys = [key for batch in batches for key in batch.column("key").to_pylist()]
        return [int(key.partition(":")[2].strip("}")) for key in keys]

    def row(self, sid: PartitionId) -> Mapping[str, Any]:
        return self._reservoir.rows()[sid]


@contextmanager
def flowing(
    feed: PostgresSources, begun: Mapping[PartitionId, Bookmark], gaps: GapLog | None = None
) -> Iterator[Flow]:
    """From these bookmarks, and those of the listing for the other sources."""
    reservoir = Reservoir(feed, limit=10**6, gaps=gaps or GapLog())
    for lineage in feed.partitions():
        reservoir.open(lineage.partition, begun.get(lineage.partition) or lineage.first or START)
    try:
        yield Flow(feed, reservoir)
    finally:
        assert reservoir.stop(30)


@pytest.fixture
def mute() -> Iterator[str]:
    """The URL of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"postgresql://127.0.0.1:{listening.getsockname()[1]}/mute"


def test_sources_that_are_away_stop_no_other(shops: Shops, mute: str) -> None:
    feed = shops.feed(others={GONE: REFUSED, MUTE: mute}, connect_timeout=2)
    began = time.monotonic()
    begun = feed.begin()
    assert time.monotonic() - began < 30
    assert set(begun) == {EU, US}
    with flowing(feed, begun) as flow:
        until(lambda: all(f"source {sid}: " in flow.row(sid)["last_error"] for sid in (GONE, MUTE)))
        for number in range(1, 4):
            shops.execute(f"INSERT INTO items VALUES ({number})")
            until(lambda n=number: flow.ids(EU) == flow.ids(US) == list(range(1, n + 1)))
        assert not any(flow.row(sid)["connected"] for sid in (GONE, MUTE))


def test_a_source_that_is_no_more_in_the_settings_stops_no_other(shops: Shops) -> None:
    feed = shops.feed()
    with pytest.raises(Unavailable, match="has no source old, only eu, us") as caught:
        feed.follow(PartitionId("old"), Bookmark(mark={}))
    assert f"penstock positions FILE delete {shops.name}/old" in caught.value.hint


def test_a_backend_without_any_source_names_the_first(shops: Shops, mute: str) -> None:
    shops.databases.clear()
    feed = shops.feed(others={GONE: REFUSED, MUTE: mute}, connect_timeout=2)
    for ask in (feed.begin, feed.tables):
        with pytest.raises(Unavailable, match=r"^source gone: "):
            ask()
    assert [each.subject for each in feed.check()] == ["source gone: server", "source mute: server"]


def test_a_source_that_is_there_later_is_followed_from_its_slot(
    shops: Shops, postgres: Postgres
) -> None:
    late = PartitionId("late")
    name = f"{shops.name}_late"
    feed = shops.feed(others={late: postgres.url_of(name)})
    begun = feed.begin()
    assert set(begun) == {EU, US}
    with ExitStack() as stack:
        with flowing(feed, begun) as flow:
            until(lambda: "source late: " in flow.row(late)["last_error"])
            # As a copy, it has its table from the first moment.
            model = stack.enter_context(postgres.database())
            model.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
            copy = postgres.database(name, f'TEMPLATE "{model.name}"')
            shops.databases[late] = database = stack.enter_context(copy)
            until(lambda: flow.row(late)["connected"])
            database.execute("INSERT INTO items SELECT generate_series(1, 10)")
            until(lambda: flow.ids(late) == list(range(1, 11)))
        database.execute("INSERT INTO items SELECT generate_series(11, 20)")
        with flowing(feed, begun) as flow:
            until(lambda: flow.ids(late) == list(range(1, 21)))


def test_a_source_that_lost_its_slot_stops_no_other_at_the_beginning() -> None:
    settings = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    with Postgres(settings={"fsync": False, **settings}) as server, ExitStack() as stack:
        databases = {sid: stack.enter_context(server.database()) for sid in (EU, US)}
        shops = Shops(databases)
        shops.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
        feed = shops.feed()
        feed.of(EU).begin()
        for _ in range(4):
            server.execute(
                "CREATE TABLE x AS SELECT repeat('x', 500) FROM generate_series(1, 9999)"
            )
            server.execute("DROP TABLE x; SELECT pg_switch_wal(); CHECKPOINT")
        begun = feed.begin()
        assert set(begun) == {US}
        with flowing(feed, begun) as flow:
            shops.execute("INSERT INTO items VALUES (1)")
            until(lambda: flow.ids(US) == [1] and "is lost" in flow.row(EU)["last_error"])
            assert flow.ids(EU) == []
