"""Many shards of the scripted DynamoDB Streams server: read side by side, within bounds, stopped at
once; and small tokens."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import penstock
from penstock.feeds import Lineage
from penstock.feeds.dynamodb import DynamodbFeed
from penstock.feeds.dynamodb.client import account_of
from penstock.model.errors import SettingsError
from penstock.model.position import Bookmark, PartitionId, Place, bookmarks_from_json
from penstock.reading.roster import openings, superseded
from penstock.stream import Stream
from penstock.stream.side_by_side import THREADS, SideBySide
from penstock.wire.dynamodb.decoder import place_of
from tests.dynamodb.server import StreamsServer, settings_of
from tests.stream.taking import PATIENCE, ids, saved, some
from tests.waiting import until


class SlowServer(StreamsServer):
    """Answers GetRecords after `delay` seconds; `most` calls were open at a time."""

    delay = 0.0
    most = 0

    def __init__(self) -> None:
        super().__init__()
        self._open = 0
        self.goes_on = threading.Event()

    def answer(self, operation: str, request: dict[str, Any]) -> bytes:
        if operation == "GetRecords" and self.delay:
            with self.lock:
                self._open += 1
                self.most = max(self.most, self._open)
            self.goes_on.wait(self.delay)
            with self.lock:
                self._open -= 1
        return super().answer(operation, request)


@pytest.fixture
def server() -> Iterator[SlowServer]:
    with SlowServer() as found:
        yield found
        found.goes_on.set()


def opened(server: StreamsServer, at: Any = "trim_horizon", **more: Any) -> Stream:
    return Stream(DynamodbFeed(settings_of(server, reads=1000, poll=0.001)), at=at, **more)


@pytest.mark.slow
def test_shards_are_read_side_by_side_by_few_threads(server: SlowServer) -> None:
    stream = server.stream("users")
    for number in range(20):
        stream.put(stream.shard(), str(number), at=server.now)
    server.delay = 0.2
    with opened(server) as iterator:
        assert sorted(ids(some(iterator, 20))) == sorted(map(str, range(20)))
    assert 1 < server.most <= THREADS


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 20])
def test_stop_answers_soon_while_the_service_does_not(server: SlowServer, shards: int) -> None:
    stream = server.stream("users")
    made = [stream.shard() for _ in range(shards)]
    iterator = opened(server)
    token = iterator.token
    server.delay = PATIENCE
    found: list[Any] = []
    following = threading.Thread(target=lambda: found.extend(iterator.follow()), daemon=True)
    following.start()
    until(lambda: server.most > 0)
    began = time.monotonic()
    iterator.stop()
    following.join(PATIENCE)
    assert time.monotonic() - began < PATIENCE / 2
    # What is read meanwhile is handed out once, by the same iterator or after its token.
    assert saved(iterator)["partitions"].keys() == token["partitions"].keys()
    server.delay = 0.0
    server.goes_on.set()
    for number, shard in enumerate(made):
        stream.put(shard, str(number), at=server.now)
    wanted = sorted(map(str, range(shards)))
    assert sorted(ids(some(iterator, shards))) == wanted
    iterator.close()
    again = opened(server, at=token)
    assert sorted(ids(some(again, shards))) == wanted
    again.close()


def followed_until_asked(
    server: SlowServer, iterator: Stream, is_held: Callable[[str], bool]
) -> tuple[threading.Thread, threading.Event]:
    """Follows in a thread, until a call that is held comes; what lets that go on."""
    asked, goes_on = threading.Event(), threading.Event()
    plain = server.answer

    def answer(operation: str, request: dict[str, Any]) -> bytes:
        if is_held(operation):
            asked.set()
            goes_on.wait(PATIENCE)
        return plain(operation, request)

    server.answer = answer  # type: ignore[method-assign]
    following = threading.Thread(target=lambda: list(iterator.follow()), daemon=True)
    following.start()
    assert asked.wait(PATIENCE)
    return following, goes_on


def test_follow_ends_at_once_while_partitions_are_looked_up(server: SlowServer) -> None:
    stream = server.stream("users")
    stream.shard()
    token = opened(server).token
    iterator = opened(server, at=token)
    following, goes_on = followed_until_asked(
        server, iterator, lambda operation: operation in ("ListStreams", "DescribeStream")
    )
    iterator.stop()
    following.join(PATIENCE / 2)
    goes_on.set()
    assert not following.is_alive()


@pytest.mark.slow
def test_a_token_keeps_an_ended_shard_until_its_children_are_taken_in(server: SlowServer) -> None:
    """`stop` comes while the children are looked up, and the look-up ends in its thread."""
    stream = server.stream("users")
    parent = stream.shard()
    stream.put(parent, "old", at=server.now)
    iterator = opened(server)
    assert ids(some(iterator, 1)) == ["old"]
    for child in stream.split(parent):
        stream.put(child, child.id, at=server.now)
    name = f"{stream.label}/{parent.id}"

    def is_held(operation: str) -> bool:
        ended = iterator._coordinator._known.bookmarks[PartitionId(name)].ended
        return operation == "DescribeStream" and ended

    following, goes_on = followed_until_asked(server, iterator, is_held)
    iterator.stop()
    following.join(PATIENCE)
    goes_on.set()
    until(lambda: bool(iterator._coordinator._known._looking._results))
    token = saved(iterator)
    assert token["partitions"][name]["ended"]
    children = sorted(set(stream.shards) - {parent.id})
    with opened(server, at=token) as again:
        assert sorted(ids(some(again, 2))) == children
        assert again.gaps == ()
    assert sorted(ids(some(iterator, 2))) == children
    iterator.close()


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 3])
def test_follow_reads_each_shard_once_in_its_time(server: SlowServer, shards: int) -> None:
    stream = server.stream("users")
    reads = [server.reads.setdefault(stream.shard().id, []) for _ in range(shards)]
    iterator = opened(server)
    for _ in range(10):
        next(iterator)  # the tip is sought
    before = [len(each) for each in reads]
    following = threading.Thread(target=lambda: list(iterator.follow(0.3)), daemon=True)
    began = time.monotonic()
    following.start()
    until(lambda: len(reads[0]) >= before[0] + 4)
    iterator.stop()
    following.join(PATIENCE)
    most = (time.monotonic() - began) / 0.3 + 1
    assert all(len(each) - count <= most for each, count in zip(reads, before, strict=True))
    iterator.close()


@pytest.mark.slow
def test_follow_reads_an_idle_shard_as_often_as_it_polls(
    server: SlowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same seconds for both, as the defaults are: no second poll is for nothing."""
    reads = server.reads.setdefault(server.stream("users").shard().id, [])
    pause = 0.3
    iterator = Stream(DynamodbFeed(settings_of(server, reads=1000, poll=pause)), at="trim_horizon")
    for _ in range(10):
        next(iterator)  # the tip is sought
    due: list[bool] = []  # of each poll when a read is due, whether there was one
    plain = iterator._coordinator.poll

    def poll(*given: Any) -> None:
        before, is_due = len(reads), time.monotonic() >= reads[-1] + pause - 0.05
        plain(*given)
        if is_due and not iterator._stopped.is_set():
            due.append(len(reads) > before)

    monkeypatch.setattr(iterator._coordinator, "poll", poll)
    following = threading.Thread(target=lambda: list(iterator.follow(pause)), daemon=True)
    following.start()
    until(lambda: len(due) >= 5)
    iterator.stop()
    following.join(PATIENCE)
    assert all(due)
    iterator.close()


@pytest.mark.slow
def test_no_more_is_fetched_than_the_buffer_holds(server: SlowServer) -> None:
    stream = server.stream("users")
    for shard in [stream.shard() for _ in range(40)]:
        for number in range(10):
            stream.put(shard, f"{shard.id}/{number}", new={"text": "x" * 3000}, at=server.now)
    page = 10 * 3000
    with opened(server, buffer=4 * page) as iterator:
        held, found = [], []
        while len(found) < 400:
            record = next(iterator)
            found += [record["key"]["id"]] if record else []
            shards = iterator._coordinator._shards.values()
            held.append(sum(shard.size for shard in shards))
        assert max(held) <= (4 + THREADS) * page * 1.2
        assert sorted(set(found)) == sorted(found)
        # In the order of each shard, and no shard waits for ever.
        for shard in {each.partition("/")[0] for each in found}:
            mine = [each for each in found if each.startswith(shard)]
            assert mine == sorted(mine)
    with pytest.raises(SettingsError, match="buffer"):
        opened(server, buffer=0)


@pytest.mark.slow
def test_a_token_of_a_hundred_shards_with_a_day_of_ancestors_is_small(
    server: SlowServer,
) -> None:
    stream = server.stream("users")
    generation, partitions = [stream.shard() for _ in range(100)], {}
    for age in range(7):
        for shard in generation:
            sequence = stream.put(shard, shard.id, at=server.now - (6 - age) * 4 * 3600)
            bookmark = Bookmark(
                place_of(sequence), {"through": int(shard.times[-1])}, ended=age < 6
            )
            partitions[f"{stream.label}/{shard.id}"] = bookmark.to_json()
            shard.closed = age < 6
        generation = generation if age == 6 else [stream.shard(shard) for shard in generation]
    iterator = opened(server)
    long = iterator.token | {"partitions": partitions}
    assert len(json.dumps(long)) > 100_000
    iterator.move_to(long)
    assert next(iterator) is None
    token = json.dumps(iterator.token)
    assert len(token) < 20_000
    known = bookmarks_from_json(json.loads(token)["partitions"])
    assert sorted(known) == sorted(f"{stream.label}/{shard.id}" for shard in generation)
    for shard in generation:
        stream.put(shard, f"late {shard.id}", at=server.now)
    again = opened(server, at=json.loads(token))
    assert len(set(ids(some(again, 100)))) == 100
    # Nothing of an ancestor is opened, however often the listing has it.
    listing = DynamodbFeed(settings_of(server)).partitions(known)
    names = [each.partition for each in listing]
    assert len(names) == 700
    assert openings(listing, known, (), absent=names).ready.keys() == known.keys()
    iterator.close()
    again.close()


@pytest.mark.slow
def test_a_token_at_latest_is_small_before_the_first_poll_and_this_process_keeps_the_place(
    server: SlowServer,
) -> None:
    """Of a day of shards, a hundred of which are open."""
    stream = server.stream("users")
    generation = [stream.shard() for _ in range(100)]
    for _ in range(6):
        generation = [stream.split(shard, 1)[0] for shard in generation]
    for shard in generation:
        stream.put(shard, f"old {shard.id}", at=server.now)
    iterator = opened(server, at="latest")
    token = json.dumps(iterator.token)
    assert len(token) < 20_000
    # The open ones, and where the stream was begun.
    assert len(json.loads(token)["partitions"]) == 101
    for shard in generation:
        stream.put(shard, f"new {shard.id}", at=server.now)
    found = set(ids(some(iterator, 100)))
    assert found == {f"new {shard.id}" for shard in generation}
    # Elsewhere the time counts, which is a minute before.
    account_of(settings_of(server))._shards.clear()
    again = opened(server, at=json.loads(token))
    assert found <= set(ids(some(again, 200)))
    iterator.close()
    again.close()


def test_an_ended_partition_stays_until_all_its_listed_children_are_known() -> None:
    def listed(text: str) -> list[Lineage]:
        found = []
        for each in text.split():
            name, _, parents = each.partition("<")
            names = tuple(map(PartitionId, filter(None, parents.split("+"))))
            found.append(Lineage(partition=PartitionId(name), parents=names))
        return found

    ended, read = Bookmark(Place("7", 0), {}, ended=True), Bookmark(Place("8", 0), {})
    tree = listed("a b<a c<a d<b")
    cases: list[tuple[dict[str, Bookmark], set[str]]] = [
        ({"a": ended}, set()),
        ({"a": ended, "b": read}, set()),  # c is not known
        ({"a": ended, "b": read, "c": read}, {"a"}),
        ({"a": ended, "b": ended, "c": read}, {"a"}),
        ({"a": ended, "b": ended, "c": read, "d": read}, {"a", "b"}),
        ({"a": read, "b": read, "c": read}, set()),
        ({"a": ended, "c": ended, "b": read, "start": ended}, {"a"}),
    ]
    for known, wanted in cases:
        given = {PartitionId(name): each for name, each in known.items()}
        assert superseded(tree, given) == wanted
    # One that is no partition of the source stays.
    assert (
        superseded(listed("a<start"), {PartitionId("start"): ended, PartitionId("a"): read})
        == set()
    )


def test_a_heartbeat_before_the_first_poll_uses_the_iterator(server: SlowServer) -> None:
    """Without AT_TIMESTAMP nothing else would know the place exactly."""
    server.at_timestamp = False
    stream = server.stream("users")
    shard = stream.shard()
    stream.put(shard, "old", at=server.now)
    iterator = opened(server, at="latest")
    server.advance(11 * 60)
    iterator.heartbeat()
    assert server.counts["GetRecords"] >= 1
    server.advance(11 * 60)
    stream.put(shard, "new", at=server.now)
    assert ids(some(iterator, 1)) == ["new"]
    iterator.close()
    iterator.heartbeat()
    assert server.counts["GetShardIterator"] == 1


def test_an_arn_and_a_model_with_a_table_go_together(server: SlowServer) -> None:
    @dataclass
    class Row:
        id: str

        class Meta:
            table_name = "users"

    stream = server.stream("users")
    stream.put(stream.shard(), "a", at=server.now)
    given = settings_of(server, table="", stream=stream.arn)
    iterator = penstock.stream(
        "dynamodb", stream=stream.arn, model=Row, at="trim_horizon", endpoint=given.endpoint,
        region="eu-central-1", access_key=server.access_key, secret_key="b",
    )  # fmt: skip
    deadline = time.monotonic() + PATIENCE
    while (record := next(iterator)) is None:
        assert time.monotonic() < deadline
    assert record["new"] == Row(id="a")


def test_a_job_that_hangs_keeps_neither_the_caller_nor_the_others() -> None:
    hangs, goes_on, stops = threading.Event(), threading.Event(), threading.Event()

    def hang() -> str:
        hangs.set()
        goes_on.wait(PATIENCE)
        return "late"

    taken: list[tuple[Any, str]] = []
    side_by_side: SideBySide[str] = SideBySide(2)

    def take(name: Any, result: str) -> None:
        taken.append((name, result))
        if len(taken) == 3:
            assert hangs.wait(PATIENCE)
            stops.set()

    jobs: dict[Any, Callable[[], str]] = {"a": hang} | {
        str(n): lambda n=n: str(n)
        for n in range(3)  # type: ignore[misc]
    }
    side_by_side.run(jobs, take, stops)
    assert sorted(name for name, _ in taken) == ["0", "1", "2"]
    assert set(side_by_side.busy) == {"a"}
    goes_on.set()
    side_by_side.run({"a": hang}, take)
    assert taken[3:] == [("a", "late")]
    assert not side_by_side.busy
    with pytest.raises(KeyError):
        side_by_side.run({"b": lambda: {}["b"]}, take)


def test_a_result_that_ctrl_c_comes_before_is_taken_by_the_next_run() -> None:
    done: list[str] = []
    taken: list[Any] = []
    interrupts = [KeyboardInterrupt()]

    def take(name: Any, result: None) -> None:
        while interrupts:
            raise interrupts.pop()
        taken.append(name)

    side_by_side: SideBySide[None] = SideBySide(1)
    jobs: dict[Any, Callable[[], None]] = {name: lambda: done.append("") for name in "ab"}
    with pytest.raises(KeyboardInterrupt):
        side_by_side.run(jobs, take)
    side_by_side.run(jobs, take)
    assert taken == ["a", "b"]
    assert len(done) == 2
    assert not side_by_side.busy
