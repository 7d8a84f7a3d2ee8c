"""What atomic batches do on a real server: the facts that `atomic` is built on, one by one."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.servers import Nats
from tests.sinks.jetstream.raw import Raw

ID, SEQUENCE, COMMIT = "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"
EXPECTED = "Nats-Expected-Last-Sequence"
Headers = dict[str, Any]


class Batches:
    """A stream that takes batches, and a connection that publishes whatever headers it is told."""

    def __init__(self, url: str, stream: str) -> None:
        self.raw, self.stream = Raw(url), stream
        self.raw.make(stream)

    def put(self, *messages: Headers, subject: str = "a.b") -> list[Headers]:
        """The answers; one that only says that a message is staged is empty."""
        for headers in messages:
            self.raw.publish(f"{self.stream}.{subject}", headers)
        return self.raw.answers(len(messages))

    def batch(self, name: str, *messages: Headers, subject: str = "a.b") -> Headers:
        """The answer to the commit of a whole batch."""
        return self.put(*batch_of(name, *messages), subject=subject)[-1]

    @property
    def messages(self) -> int:
        return int(self.raw.info(self.stream)["state"]["messages"])


@pytest.fixture
def batches(nats: Nats, stream: str) -> Iterator[Batches]:
    made = Batches(nats.url, stream)
    yield made
    made.raw.connection.close()


def batch_of(name: str, *messages: Headers) -> list[Headers]:
    found = [{ID: name, SEQUENCE: number, **one} for number, one in enumerate(messages, 1)]
    return [*found[:-1], {COMMIT: 1, **found[-1]}]


def code(answer: Headers) -> int:
    return int(answer.get("error", {}).get("err_code", 0))


def fence(stream: str, sequence: int) -> Headers:
    return {
        "Nats-Expected-Last-Subject-Sequence": sequence,
        "Nats-Expected-Last-Subject-Sequence-Subject": f"{stream}.*.*",
    }


@pytest.mark.parametrize(
    ("messages", "refused"),
    [
        pytest.param([{ID: "b", SEQUENCE: 1}, {ID: "b", SEQUENCE: 3, COMMIT: 1}], 10176, id="gap"),
        pytest.param([{ID: "b", SEQUENCE: 2, COMMIT: 1}], 10176, id="unknown"),
        pytest.param([{ID: "b", COMMIT: 1}], 10175, id="no sequence"),
        pytest.param(batch_of("b" * 65, {}), 10179, id="long name"),
        pytest.param(batch_of("b", {COMMIT: "maybe"}), 10200, id="odd commit"),
        pytest.param(batch_of("b", *[{}] * 1001), 10199, id="1001 messages"),
        pytest.param(batch_of("b", {"Nats-Expected-Last-Msg-Id": "1"}), 10177, id="expected id"),
        pytest.param(batch_of("b", {EXPECTED: 1}, {}), 10071, id="expected sequence"),
        pytest.param(batch_of("b", *[{"Nats-Msg-Id": "4"}] * 2), 10201, id="an id twice"),
    ],
)
def test_what_is_refused_stores_nothing(
    messages: list[Headers], refused: int, batches: Batches
) -> None:
    assert code(batches.put(*messages)[-1]) == refused
    assert batches.messages == 0


def test_the_expected_sequence_is_taken_on_the_first_message_only(batches: Batches) -> None:
    assert code(batches.batch("b", {}, {EXPECTED: 0}))
    assert batches.messages == 0


def test_a_stream_that_does_not_allow_batches_says_so(batches: Batches) -> None:
    batches.raw.update(batches.stream, allow_atomic=False)
    assert code(batches.batch("b", {})) == 10174


def test_a_batch_is_stored_whole_with_consecutive_sequences(batches: Batches) -> None:
    answer = batches.batch("b" * 64, {}, {}, {})
    assert (answer["seq"], answer["count"], answer["batch"]) == (3, 3, "b" * 64)
    assert batches.messages == 3
    assert batches.batch("full", *[{}] * 1000)["count"] == 1000


def test_nothing_is_stored_before_the_commit(batches: Batches) -> None:
    assert batches.put({ID: "b", SEQUENCE: 1}) == [{}]
    assert batches.messages == 0


def test_message_ids_work_inside_a_batch(batches: Batches) -> None:
    batches.batch("b", {"Nats-Msg-Id": "1"}, {"Nats-Msg-Id": "2"})
    assert code(batches.batch("c", {"Nats-Msg-Id": "3"}, {"Nats-Msg-Id": "2"})) == 10201
    (answer,) = batches.put({"Nats-Msg-Id": "1"})
    assert answer["duplicate"] is True
    assert batches.messages == 2


def test_the_fence_may_be_a_wildcard(batches: Batches) -> None:
    stream = batches.stream
    assert batches.batch("a", fence(stream, 0), {})["seq"] == 2
    assert code(batches.batch("b", fence(stream, 0), {})) == 10071
    assert code(batches.batch("c", fence(stream, 1), {})) == 10071
    assert batches.batch("d", fence(stream, 2), {}, subject="other.name")["seq"] == 4
    # What another shard stores does not move ours.
    batches.put({}, subject="a.b.c")
    assert batches.batch("e", fence(stream, 4), {})["seq"] == 7


def test_the_fence_looks_at_what_was_before_the_batch(batches: Batches) -> None:
    first, last = batch_of("a", fence(batches.stream, 0), {})
    assert list(map(code, batches.put(first, {}, last))) == [0, 0, 10071]


def test_a_chain_on_the_streams_sequence_can_be_pipelined(batches: Batches) -> None:
    each = [batch_of(f"b{n}", {EXPECTED: n * 10}, *[{}] * 9) for n in range(20)]
    answers = batches.put(*(one for messages in each for one in messages))
    assert [answer["seq"] for answer in answers if answer] == [n * 10 for n in range(1, 21)]


def test_a_broken_chain_stores_nothing_behind_the_break(batches: Batches) -> None:
    batches.put({})
    for number in range(3):
        assert code(batches.batch(f"b{number}", {EXPECTED: number * 2}, {})) == 10071
    assert batches.messages == 1


def test_too_many_open_batches_are_refused(batches: Batches) -> None:
    answers = batches.put(*({ID: f"b{n}", SEQUENCE: 1} for n in range(51)))
    assert list(map(code, answers)) == [0] * 50 + [10210]


def test_the_last_message_of_a_shard_reads_back_with_its_headers(batches: Batches) -> None:
    api, stream = batches.raw.api, batches.stream
    batches.batch("a", {}, {"Mine": "yes"}, subject="x.y")
    batches.put({}, subject="x.y.z")
    last = api.last(stream, f"{stream}.*.*")
    assert last is not None
    assert (last.sequence, last.subject) == (2, f"{stream}.x.y")
    assert last.headers["Mine"] == "yes"
    assert api.last(stream, f"{stream}.q.*") is None
