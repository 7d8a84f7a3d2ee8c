"""Compressed messages on a real server: stored once, and read by everything of ours that reads; and
dictionaries, trained on what is in the stream and used from the next start on."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.consumer.tail.reader import Message, TailReader
from penstock.consumer.training import trained
from penstock.model.change import ERROR
from penstock.model.errors import SettingsError, Unavailable
from penstock.nats.buckets import Bucket
from penstock.nats.compression import DictionaryBucket
from penstock.nats.connection import Connection
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSettings, JetStreamSink
from tests.servers import Nats
from tests.sinks.changes import batch_of

BATCHES = 6  # of 50 changes of each of two tables


class Place:
    """A stream with changes, its sinks, its pipeline file, and its readers."""

    def __init__(self, url: str, folder: Path, batch_of: Any) -> None:
        self.url, self.file, self._batch_of = url, folder / "pipeline.yaml", batch_of
        self.count = 0
        self.connection = Connection(self.settings())
        self.connection.open()
        document = {
            "name": "shop",
            "backends": [{"name": "default", "type": "memory"}],
            "sink": {"type": "jetstream", "url": url, "stream": "CDC", "compression": "zstd"},
        }
        self.file.write_bytes(orjson.dumps(document))

    def settings(self, **fields: Any) -> JetStreamSettings:
        return JetStreamSettings(**{"url": self.url, "compression": "zstd", **fields})

    def write(self, batches: int = BATCHES, columns: Any = None, **fields: Any) -> None:
        sink = JetStreamSink(self.settings(**fields))
        for _ in range(batches):
            self.count += 1
            rows = [
                orjson.dumps({"id": n, "email": f"u{n * self.count}@example.com"}).decode()
                for n in range(100)
            ]
            columns = {"collection": ["a", "b"] * 50, **(columns or {})}
            sink.write([self._batch_of(100, self.count, after=rows, **columns)], ignore)

    def read(self) -> list[Message]:
        found: list[Message] = []
        with TailReader(self.url, "CDC") as reader:
            while len(found) < 100 * self.count:
                before = len(found)
                found += reader.fetch(timeout=30)
                assert len(found) > before
        return found

    def run(self, *words: str) -> Any:
        verb, *rest = words
        return CliRunner().invoke(main, ["dictionaries", verb, str(self.file), *rest])


@pytest.fixture
def place(own_nats: Callable[..., Nats], tmp_path: Path) -> Iterator[Place]:
    made = Place(own_nats().url, tmp_path, batch_of)
    yield made
    made.connection.close()


def test_changes_are_compressed_by_the_dictionary_of_their_table(place: Place) -> None:
    place.write()
    first = place.run("train", "public.a", "--json")
    assert first.exit_code == 0, first.output
    (about,) = orjson.loads(first.stdout)
    assert (about["table"], about["samples"]) == ("a", 270)
    assert about["ratio"] > 2 * about["plain_ratio"]
    place.write(dictionaries=True)
    place.write(messages="batch", encoding="arrow", dictionaries=True)
    found = place.read()
    assert len({one.event_id for one in found}) == len(found) == 100 * place.count
    named = {one.collection: set[str | None]() for one in found}
    for one in found[600:1200]:
        named[one.collection].add(one.headers.get("Penstock-Dictionary"))
    assert named == {"a": {about["id"]}, "b": {None}}
    assert {one.body["data"]["email"] for one in found if one.body["data"]["id"] == 3} == {
        f"u{3 * n}@example.com" for n in range(1, place.count + 1)
    }


def test_a_collection_of_a_document_database_has_a_dictionary(place: Place) -> None:
    document = {"namespace": "shop", "database": "shop", "relation_id": None}
    place.write(columns=document)
    (about,) = orjson.loads(place.run("train", "shop.a", "--json").stdout)
    place.write(1, columns=document, dictionaries=True)
    last = [one for one in place.read()[-100:] if one.collection == "a"]
    assert {one.headers.get("Penstock-Dictionary") for one in last} == {about["id"]}


def test_a_new_dictionary_is_trained_on_compressed_changes_and_the_old_one_stays(
    place: Place,
) -> None:
    place.write()
    ids = []
    for start in range(2):
        done = place.run("train", "--json")
        assert done.exit_code == 0, done.output
        assert "unused yet" in done.stderr
        ids.append([one["id"] for one in orjson.loads(done.stdout)])
        place.write(dictionaries=True, timeout=5 + start)  # with a session of its own
    listed = orjson.loads(place.run("list", "--json").stdout)
    assert sorted(one["id"] for one in listed) == sorted(ids[1])
    used = {one.headers.get("Penstock-Dictionary") for one in place.read()}
    assert used >= {*ids[0], *ids[1]}
    assert "default.public.a" in place.run("list").stdout


def test_a_lost_dictionary_stops_a_reader_and_loses_nothing(place: Place) -> None:
    place.write(1)
    assert place.run("train", "a", "--messages", "100").exit_code == 2  # 50 of the table
    place.write(2)
    (about,) = orjson.loads(place.run("train", "a", "--json").stdout)
    place.write(1, dictionaries=True)
    key, bucket = f"id.{about['id']}", Bucket(place.connection, "dictionaries")
    kept = bucket.get(key)
    assert kept is not None
    bucket.delete(key)
    with TailReader(place.url, "CDC") as reader:
        found: list[Message] = []
        with pytest.raises(SettingsError, match=f"the dictionary {about['id']}, which the bucket"):
            while True:
                found += reader.fetch(timeout=30)
        assert len(found) == reader.sequence == 300
        bucket.put(key, kept.value or b"")
        while len(found) < 400:
            found += reader.fetch(timeout=30)
    assert len({one.event_id for one in found}) == 400


def test_a_server_that_is_away_is_asked_for_a_dictionary_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write(3)
    assert place.run("train", "a").exit_code == 0
    place.write(1, dictionaries=True)
    asked, fails = TailReader._dictionary, [True, True]

    def ask(reader: TailReader, id: str) -> bytes | None:
        if fails:
            fails.pop()
            raise Unavailable("away")
        return asked(reader, id)

    monkeypatch.setattr(TailReader, "_dictionary", ask)
    with TailReader(place.url, "CDC") as reader:
        found: list[Message] = []
        while len(found) < 400:
            found += reader.fetch(timeout=30)
    assert len({one.event_id for one in found}) == 400 and not fails


def test_what_cannot_be_trained_is_said(place: Place) -> None:
    found = place.run("train", "a")
    assert found.exit_code == 2 and "there is no stream 'CDC'" in found.output
    assert place.run("list").stdout == "no dictionaries\n"
    place.write(1)
    few = place.run("train", "a")
    assert few.exit_code == 2 and "default.public.a has 50 messages" in few.output
    absent = place.run("train", "absent")
    assert absent.exit_code == 2
    assert "there are: default.public.a, default.public.b" in absent.output
    every = place.run("train")
    assert every.exit_code == 0 and every.stderr.count("left out") == 2
    assert "--size" in place.run("train", "a", "--size", "many").output


def test_another_dictionary_never_takes_an_id(place: Place) -> None:
    bodies = [f"body {n} of many, all of them alike {n * n}".encode() for n in range(500)]
    found = trained(("default", "public", "a"), bodies, 4096)
    bucket = DictionaryBucket(place.connection)
    bucket.put("CDC", [found])
    with pytest.raises(SettingsError, match=f"another dictionary with the id {found[0].id}"):
        bucket.put("CDC", [found])


def test_a_pipeline_without_dictionaries_is_warned(place: Place) -> None:
    place.write()
    sink = JetStreamSink(place.settings(dictionaries=True))
    warned = [one for one in sink.check() if one.subject == "sink.dictionaries"]
    assert [one.level for one in warned] == ["warning"]
    assert place.run("train").exit_code == 0
    assert not [one for one in sink.check() if one.subject == "sink.dictionaries"]


# Without dictionaries.

Make = Callable[..., JetStreamSink]
LONG = orjson.dumps({"text": "all work and no play " * 40}).decode()


@pytest.fixture
def make(sink_of: Any) -> Make:
    return lambda **fields: sink_of(compression="zstd", **fields)


@pytest.fixture
def changes(nats: Nats, stream: str) -> Callable[[int], list[Message]]:
    """All that the stream has, at least so many."""

    def read(least: int) -> list[Message]:
        found: list[Message] = []
        with TailReader(nats.url, stream) as reader:
            while len(found) < least:
                before = len(found)
                found += reader.fetch(timeout=30)
                assert len(found) > before
            return found + reader.fetch(timeout=0.1)

    return read


@pytest.mark.parametrize(
    ("form", "delivery"),
    [
        ({"encoding": "msgpack"}, "exactly-once"),
        ({"encoding": "msgpack"}, "deduplicated"),
        ({"encoding": "json", "messages": "batch"}, "exactly-once"),
        ({"encoding": "arrow", "messages": "batch"}, "exactly-once"),
    ],
)
def test_each_change_is_stored_once(
    form: Any, delivery: str, make: Make, changes: Callable[[int], list[Message]]
) -> None:
    after = [LONG, '{"id":1}', LONG]
    batches = [batch_of(3, n, after=after, collection=["a", "b", "a"]) for n in range(1, 5)]
    make(**form, delivery=delivery).write(batches[:3], ignore)
    make(**form, delivery=delivery).write(batches, ignore)
    found = changes(12)
    # With `messages: batch` those of another table may pass.
    assert sorted(one.event_id for one in found) == [
        f"default:00000000/{n:08X}:{place}" for n in range(1, 5) for place in range(3)
    ]
    by_id = {one.event_id: one for one in found}
    assert by_id["default:00000000/00000004:2"].body["data"] == orjson.loads(LONG)
    assert "zstd" in {one.headers.get("Content-Encoding") for one in found}


def test_a_replayed_dead_letter_is_read(
    make: Make, changes: Callable[[int], list[Message]]
) -> None:
    why = orjson.dumps({"reason": "not-utf8", "error": "e", "raw": "cmF3", "context": "Yw=="})
    bad = batch_of(
        2, after=[LONG, why.decode()], key=['{"id":0}', None], operation=["INSERT", ERROR]
    )
    sink = make(on_error="dead-letter")
    sink.write([bad], ignore)
    (letter,) = sink.dead_letters()
    sink.replay(letter["event_id"], lambda _: [batch_of(2, after=LONG).slice(1, 1)])
    found = changes(2)
    assert [one.event_id[-1] for one in found] == ["0", "1"]
    for one in found:
        assert one.headers["Content-Encoding"] == "zstd"
        assert one.body["data"] == orjson.loads(LONG)
    assert found[1].headers["Penstock-Replayed"] == letter["position"]


def test_a_change_that_is_too_large_as_it_is_may_fit(
    make: Make, changes: Callable[[int], list[Message]]
) -> None:
    large = orjson.dumps({"text": "x" * (2 << 20)}).decode()
    make().write([batch_of(2, after=[large, "{}"])], ignore)
    assert [len(one.body["data"].get("text", "")) for one in changes(2)] == [2 << 20, 0]
