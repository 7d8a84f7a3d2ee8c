"""What atomic batches do on a real server: the facts that `atomic` is built on, one by one."""

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from penstock.nats.api import JetStream
from penstock.nats.connection import Connection
from penstock.nats.protocol import hpub
from penstock.sinks.jetstream.settings import JetStreamSettings
from tests.servers import Nats

pytestmark = pytest.mark.live


class Raw:
    """A connection that publishes whatever headers it is told to, and returns the answers."""

    def __init__(self, url: str, stream: str) -> None:
        self.stream = stream
        self.connection = Connection(JetStreamSettings(url=url))
        self.connection.open()
        self.api = JetStream(self.connection)
        self._number = 0
        self.api.create({"name": stream, "subjects": [f"{stream}.>"], "allow_atomic": True})

    def put(
        self, headers: dict[str, Any], subject: str = "a.b", *, reply: bool = True
    ) -> dict[str, Any] | None:
        """None when there is no answer, {} when it is empty."""
        self._number += 1
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        inbox = f"{self.connection.inbox}.{self._number}".encode() if reply else b""
        raw = f"NATS/1.0\r\n{lines}\r\n".encode()
        self.connection.send(hpub(f"{self.stream}.{subject}".encode(), inbox, raw, b"x"))
        if not reply:
            return None
        for message in self.connection.receive(30):
            if message.subject == inbox:
                return dict(orjson.loads(message.payload)) if message.payload else {}
        return None

    def batch(
        self, name: str, *messages: dict[str, Any], commit: str = "1", subject: str = "a.b"
    ) -> dict[str, Any]:
        """Publishes a whole batch; the answer to its commit."""
        for number, extra in enumerate(messages, 1):
            last = number == len(messages)
            end = {"Nats-Batch-Commit": commit} if last else {}
            headers = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": number, **extra, **end}
            answer = self.put(headers, subject, reply=last)
        assert answer is not None
        return answer

    @property
    def messages(self) -> int:
        info = self.api.stream(self.stream)
        assert info is not None
        return int(info["state"]["messages"])


@pytest.fixture
def raw(nats: Nats, stream: str) -> Iterator[Raw]:
    one = Raw(nats.url, stream)
    yield one
    one.connection.close()


def code(answer: dict[str, Any]) -> int:
    return int(answer["error"]["err_code"])


def fence(raw: Raw, sequence: int, wildcard: str = "*.*") -> dict[str, Any]:
    return {
        "Nats-Expected-Last-Subject-Sequence": sequence,
        "Nats-Expected-Last-Subject-Sequence-Subject": f"{raw.stream}.{wildcard}",
    }


def test_a_batch_is_stored_whole_with_consecutive_sequences(raw: Raw) -> None:
    answer = raw.batch("b", {}, {}, {})
    assert (answer["seq"], answer["count"], answer["batch"]) == (3, 3, "b")
    assert raw.messages == 3


def test_nothing_is_stored_before_the_commit(raw: Raw) -> None:
    assert raw.put({"Nats-Batch-Id": "b", "Nats-Batch-Sequence": 1}) == {}
    assert raw.messages == 0


def test_a_gap_in_the_sequence_abandons_the_batch(raw: Raw) -> None:
    raw.put({"Nats-Batch-Id": "b", "Nats-Batch-Sequence": 1}, reply=False)
    answer = raw.put({"Nats-Batch-Id": "b", "Nats-Batch-Sequence": 3, "Nats-Batch-Commit": "1"})
    assert answer is not None
    assert code(answer) == 10176
    assert raw.messages == 0


def test_a_commit_of_an_unknown_batch_is_incomplete(raw: Raw) -> None:
    answer = raw.put({"Nats-Batch-Id": "b", "Nats-Batch-Sequence": 2, "Nats-Batch-Commit": "1"})
    assert answer is not None
    assert code(answer) == 10176


def test_a_batch_needs_sequences_and_a_short_name_and_a_sane_commit(raw: Raw) -> None:
    no_sequence = raw.put({"Nats-Batch-Id": "b", "Nats-Batch-Commit": "1"})
    assert no_sequence is not None
    assert code(no_sequence) == 10175
    assert code(raw.batch("b" * 65, {})) == 10179
    assert "seq" in raw.batch("b" * 64, {})
    assert code(raw.batch("c", {}, commit="maybe")) == 10200


def test_a_batch_of_1000_is_stored_and_one_of_1001_is_refused(raw: Raw) -> None:
    assert raw.batch("full", *[{}] * 1000)["count"] == 1000
    assert code(raw.batch("over", *[{}] * 1001)) == 10199
    assert raw.messages == 1000


def test_a_stream_that_does_not_allow_batches_says_so(nats: Nats, raw: Raw) -> None:
    name = f"{raw.stream}N"
    raw.api.create({"name": name, "subjects": [f"{name}.>"]})
    raw.stream = name
    assert code(raw.batch("b", {})) == 10174


def test_message_ids_work_inside_a_batch(raw: Raw) -> None:
    raw.batch("b", {"Nats-Msg-Id": "1"}, {"Nats-Msg-Id": "2"})
    assert code(raw.batch("c", {"Nats-Msg-Id": "3"}, {"Nats-Msg-Id": "2"})) == 10201
    assert code(raw.batch("d", {"Nats-Msg-Id": "4"}, {"Nats-Msg-Id": "4"})) == 10201
    answer = raw.put({"Nats-Msg-Id": "1"})
    assert answer is not None
    assert answer["duplicate"] is True
    assert raw.messages == 2


def test_the_fence_may_be_a_wildcard(raw: Raw) -> None:
    assert raw.batch("a", fence(raw, 0), {})["seq"] == 2
    assert code(raw.batch("b", fence(raw, 0), {})) == 10071
    assert code(raw.batch("c", fence(raw, 1), {})) == 10071
    assert raw.batch("d", fence(raw, 2), {}, subject="other.name")["seq"] == 4
    # What another shard stores does not move ours.
    raw.put({}, "a.b.c")
    assert raw.batch("e", fence(raw, 4), {})["seq"] == 7


def test_the_fence_looks_at_what_was_before_the_batch(raw: Raw) -> None:
    raw.put({"Nats-Batch-Id": "a", "Nats-Batch-Sequence": 1, **fence(raw, 0)}, reply=False)
    raw.put({})
    answer = raw.put({"Nats-Batch-Id": "a", "Nats-Batch-Sequence": 2, "Nats-Batch-Commit": "1"})
    assert answer is not None
    assert code(answer) == 10071


def test_a_chain_on_the_streams_sequence_can_be_pipelined(raw: Raw) -> None:
    chain = [{"Nats-Expected-Last-Sequence": n * 10} for n in range(20)]
    for number, first in enumerate(chain):
        for sequence in range(1, 11):
            last = {"Nats-Batch-Commit": "1"} if sequence == 10 else {}
            extra = first if sequence == 1 else {}
            headers = {"Nats-Batch-Id": f"b{number}", "Nats-Batch-Sequence": sequence}
            raw.put({**headers, **extra, **last}, reply=False)
    raw.connection.ping()
    assert raw.batch("end", {"Nats-Expected-Last-Sequence": 200})["seq"] == 201


def test_a_broken_chain_stores_nothing_behind_the_break(raw: Raw) -> None:
    raw.put({})
    for number in range(3):
        answer = raw.batch(f"b{number}", {"Nats-Expected-Last-Sequence": number * 2}, {})
        assert code(answer) == 10071
    assert raw.messages == 1


def test_the_expected_sequence_is_taken_on_the_first_message_only(raw: Raw) -> None:
    answer = raw.batch("b", {}, {"Nats-Expected-Last-Sequence": 0})
    assert "error" in answer
    assert raw.messages == 0


def test_an_expected_message_id_is_not_supported_in_a_batch(raw: Raw) -> None:
    assert code(raw.batch("b", {"Nats-Expected-Last-Msg-Id": "1"})) == 10177


def test_too_many_open_batches_are_refused(raw: Raw) -> None:
    answers = [raw.put({"Nats-Batch-Id": f"b{n}", "Nats-Batch-Sequence": 1}) for n in range(51)]
    assert answers[:50] == [{}] * 50
    assert answers[50] is not None
    assert code(answers[50]) == 10210


def test_the_last_message_of_a_shard_reads_back_with_its_headers(raw: Raw) -> None:
    raw.batch("a", {}, {"Mine": "yes"}, subject="x.y")
    raw.put({}, "x.y.z")
    last = raw.api.last(raw.stream, f"{raw.stream}.*.*")
    assert last is not None
    assert (last.sequence, last.subject) == (2, f"{raw.stream}.x.y")
    assert last.headers["Mine"] == "yes"
    assert raw.api.last(raw.stream, f"{raw.stream}.q.*") is None
