"""Operations that a layout does not publish: the position passes them all the same."""

from typing import Any

import orjson
import pytest

from penstock.model.position import PartitionId, Place
from tests.progress import Noted
from tests.servers import Nats
from tests.sinks.changes import batch_of, read

# Of a change stream: documents, and what became of collections.
OPERATIONS = ["INSERT", "DROP", "REPLACE", "RENAME", "DELETE", "DROP_DATABASE", "INVALIDATE"]


def _changes() -> Any:
    nothing = {"DROP", "RENAME", "DROP_DATABASE", "INVALIDATE"}
    return batch_of(
        len(OPERATIONS),
        operation=OPERATIONS,
        key=[None if each in nothing else '{"_id":1}' for each in OPERATIONS],
        document_id=[None if each in nothing else "1" for each in OPERATIONS],
        relation_id=None,
    )


@pytest.mark.parametrize("delivery", ["exactly-once", "deduplicated"])
@pytest.mark.parametrize("messages", ["change", "batch"])
def test_a_puller_gets_documents_only_and_the_position_passes_the_rest(
    messages: str, delivery: str, nats: Nats, stream: str, sink_of: Any
) -> None:
    sink = sink_of(layout="puller", encoding="json", messages=messages, delivery=delivery)
    batch = _changes()
    (partition,) = set(batch.column("partition").to_pylist())
    last = Place(batch.column("cursor")[-1].as_py(), batch.column("ordinal")[-1].as_py())
    for _ in range(2):  # the same again is once
        progress = Noted()
        receipt = sink.write([batch], progress)
        assert receipt.position == {PartitionId(partition): last}
        bodies = [orjson.loads(message.data) for message in read(nats.url, stream)]
        events = [one for body in bodies for one in (body if isinstance(body, list) else [body])]
        assert [event["Type"] for event in events] == ["INSERT", "UPDATE", "DELETE"]


def test_nothing_but_what_is_omitted_is_passed_too(sink_of: Any) -> None:
    sink = sink_of(layout="puller", encoding="json")
    batch = _changes().slice(5)
    (position,) = sink.write([batch], Noted()).position.values()
    assert position.ordinal == batch.column("ordinal")[-1].as_py()
