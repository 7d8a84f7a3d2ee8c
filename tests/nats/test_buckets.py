"""Key-value buckets on a real server; nats-py, which shares no code with us, reads the same."""

import asyncio
import threading
import uuid
from collections.abc import Callable

import nats as nats_py
import pytest

from penstock.model.errors import SettingsError
from penstock.nats.buckets import Bucket, KeyValue, WrongRevision
from penstock.nats.connection import Connection
from tests.servers import Nats


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def bucket(connection: Connection, name: str) -> Bucket:
    made = Bucket(connection, name)
    made.create(history=5)
    return made


def test_a_key_that_was_never_set_has_no_value(bucket: Bucket) -> None:
    assert bucket.get("a") is None
    assert bucket.entries() == []
    assert bucket.history("a") == []


def test_what_was_put_is_got(bucket: Bucket) -> None:
    revision = bucket.put("a", b"1")
    assert bucket.get("a") == KeyValue("a", revision, b"1")
    assert bucket.put("a", b"") > revision
    assert bucket.get("a").value == b""  # type: ignore[union-attr]


def test_a_key_is_inserted_once(bucket: Bucket) -> None:
    bucket.insert("a", b"1")
    with pytest.raises(WrongRevision, match="a in the bucket"):
        bucket.insert("a", b"2")
    assert bucket.get("a").value == b"1"  # type: ignore[union-attr]


def test_a_deleted_key_can_be_inserted_again(bucket: Bucket) -> None:
    bucket.insert("a", b"1")
    deleted = bucket.delete("a")
    assert bucket.get("a") is None
    assert bucket.last("a") == KeyValue("a", deleted, None)
    assert bucket.insert("a", b"2") > deleted


def test_an_update_needs_the_last_revision(bucket: Bucket) -> None:
    first = bucket.put("a", b"1")
    (second,) = bucket.swap([("a", b"2", first)])
    assert isinstance(second, int)
    assert isinstance(bucket.swap([("a", b"3", first)])[0], WrongRevision)
    with pytest.raises(WrongRevision):
        bucket.delete("a", first)
    bucket.delete("a", second)
    assert bucket.get("a") is None


def test_many_keys_are_swapped_each_by_itself(bucket: Bucket) -> None:
    taken = bucket.put("k7", b"taken")
    found = bucket.swap([(f"k{n}", b"x", 0) for n in range(1200)])
    assert [n for n, one in enumerate(found) if isinstance(one, WrongRevision)] == [7]
    entries = bucket.entries()
    assert len(entries) == 1200
    assert KeyValue("k7", taken, b"taken") in entries
    assert [entry.revision for entry in entries] == sorted(entry.revision for entry in entries)


def test_of_racing_updates_one_wins_each_round(
    connect: Callable[[], Connection], bucket: Bucket
) -> None:
    bucket.put("counter", b"0")

    def count() -> None:
        mine = Bucket(connect(), bucket.name)
        done = 0
        while done < 25:
            entry = mine.get("counter")
            assert entry is not None
            assert entry.value is not None
            value = b"%d" % (int(entry.value) + 1)
            (found,) = mine.swap([("counter", value, entry.revision)])
            done += isinstance(found, int)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bucket.get("counter").value == b"100"  # type: ignore[union-attr]


def test_the_history_is_what_the_bucket_keeps(bucket: Bucket) -> None:
    for n in range(7):
        bucket.put("a", b"%d" % n)
    bucket.put("b", b"other")
    assert [entry.value for entry in bucket.history("a")] == [b"2", b"3", b"4", b"5", b"6"]
    bucket.delete("a")
    assert [entry.value for entry in bucket.history("a")][-2:] == [b"6", None]


def test_another_client_reads_the_same_bucket(nats: Nats, bucket: Bucket) -> None:
    async def read() -> tuple[bytes | None, list[str], int]:
        client = await nats_py.connect(nats.url)
        found = await client.jetstream().key_value(bucket.name)
        revision = await found.put("theirs", b"2")
        value = (await found.get("ours")).value
        keys = await found.keys()
        await client.close()
        return value, keys, revision

    bucket.put("ours", b"1")
    value, keys, revision = asyncio.run(read())
    assert (value, sorted(keys)) == (b"1", ["ours", "theirs"])
    assert bucket.get("theirs") == KeyValue("theirs", revision, b"2")


def test_a_bucket_that_exists_stays_as_it_is(connection: Connection, bucket: Bucket) -> None:
    bucket.put("a", b"1")
    Bucket(connection, bucket.name).create(history=1)
    bucket.put("a", b"2")
    assert len(bucket.history("a")) == 2


def test_a_bucket_that_is_missing_is_an_error_with_the_remedy(connection: Connection) -> None:
    with pytest.raises(SettingsError, match="no bucket") as caught:
        Bucket(connection, "missing").put("a", b"1")
    assert "nats kv add missing" in caught.value.hint
