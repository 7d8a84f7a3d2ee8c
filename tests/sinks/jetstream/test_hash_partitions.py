"""Hash partitions with several changes a message: full messages, and what is stored is a prefix."""

from typing import Any

import orjson
import pytest

from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSink
from tests.servers import Nats
from tests.sinks.changes import batch_of, ids_of, read

pytestmark = pytest.mark.live

PARTITIONS, ROWS = 16, 6000


def of_documents(commit: int, operations: list[str], rows: int = ROWS) -> Any:
    """Changes of 97 documents in turns, with these operations in turns."""
    documents = [n % 97 for n in range(rows)]
    return batch_of(
        rows, commit,
        document_id=[str(one) for one in documents],
        key=[orjson.dumps({"id": one}).decode() for one in documents],
        operation=[operations[n // 97 % len(operations)] for n in range(rows)],
        route=[one % PARTITIONS for one in documents],
    )  # fmt: skip


def changes_of(message: Any) -> list[dict[str, Any]]:
    body = orjson.loads(message.data)
    return [dict(zip(body["fields"], change, strict=True)) for change in body["changes"]]


@pytest.fixture
def sink(stream: str, sink_of: Any) -> JetStreamSink:
    subject = f"{stream}.{{partition}}"
    return sink_of(subject=subject, messages="batch", encoding="json", delivery="exactly-once")


@pytest.mark.parametrize("operations", [["UPDATE"], ["INSERT", "UPDATE"]], ids=["one", "two"])
def test_each_document_is_in_order_and_a_repeat_adds_nothing(
    operations: list[str], sink: JetStreamSink, nats: Nats, stream: str
) -> None:
    """Two operations in turns make thousands of messages of a part: more than may be stored
    together."""
    batches = [of_documents(commit, operations) for commit in (1, 2)]
    sink.write(iter(batches), ignore)
    found = read(nats.url, stream)
    sink.write(iter(batches), ignore)
    assert len(read(nats.url, stream)) == len(found)
    changes = [change for message in found for change in changes_of(message)]
    ids = [change["event_id"] for change in changes]
    assert len(ids) == len(set(ids))
    assert set(ids) == set(ids_of(*batches))
    at = {event: number for number, event in enumerate(ids)}
    for document in range(97):
        mine = [
            at[event]
            for batch in batches
            for event in batch.column("event_id").to_pylist()[document::97]
        ]
        assert mine == sorted(mine)
    for message in found:
        wanted = message.subject.rpartition(".")[2]
        assert {str(int(c["document_id"]) % PARTITIONS) for c in changes_of(message)} == {wanted}


def test_messages_are_as_full_as_without_hash_partitions(
    sink: JetStreamSink, nats: Nats, stream: str
) -> None:
    """A backlog of pages of 500 changes: each message has more than a sixteenth of a page."""
    pages = [of_documents(commit, ["UPDATE"], 500) for commit in range(1, 61)]
    sink.write(pages, ignore)
    sizes = [len(changes_of(message)) for message in read(nats.url, stream)]
    assert sum(sizes) == 30_000
    # 500 changes would be 16 messages of 31.
    assert len(sizes) < 30_000 / 31 / 4
