"""Two sources whose backends and partitions have equal names, in one stream."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from penstock.model.errors import SettingsError
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSink
from tests.servers import Nats
from tests.sinks.changes import batch_of, ids_of, read
from tests.sinks.jetstream.publishing.test_partitions import SYNCED

SinkOf = Callable[..., JetStreamSink]
# Two sources of each feed, as their marks say it.
MARKS = {
    "postgres": [{"system": "71", "timeline": 1}, {"system": "72", "timeline": 1}],
    "mongodb": [{"token": {"_data": "8"}, "cluster": f"rs0/{id}"} for id in "ab"],
    "databases of a cluster": [
        {"token": {"_data": "8"}, "cluster": "rs0/a", "database": name} for name in ("a/", "ab/")
    ],
    "cosmos": [{"rid": "a=", "range": ["", "FF"]}, {"rid": "b=", "range": ["", "FF"]}],
}  # fmt: skip


def marked(mark: dict[str, Any], commit: int, **columns: Any) -> Any:
    return batch_of(5, commit, mark=orjson.dumps(mark).decode(), **columns)


@pytest.fixture
def sink(nats: Nats, stream: str, sink_of: Any) -> SinkOf:
    def made(**settings: Any) -> JetStreamSink:
        subject = f"{stream}.{{backend}}.{{source_partition}}.{{collection}}"
        made: JetStreamSink = sink_of(nats.url, **{"subject": subject, **settings})
        made.prepare()
        return made

    return made


@pytest.mark.parametrize("feed", MARKS)
@pytest.mark.parametrize("form", SYNCED)
@pytest.mark.parametrize("delivery", ["exactly-once", "auto"])
def test_changes_of_another_source_are_never_taken_for_stored_ones(
    sink: SinkOf, nats: Nats, stream: str, feed: str, form: str, delivery: str
) -> None:
    """Whether their places are smaller or larger."""
    one, other = MARKS[feed]
    settings = {**SYNCED[form], "delivery": delivery}
    first = marked(one, 100)
    assert sink(**settings).write([first], ignore).published == 5
    for commit in (1, 200):
        with pytest.raises(SettingsError, match="another source that is also named") as raised:
            sink(**settings).write([marked(other, commit)], ignore)
        assert raised.value.code == "jetstream.other-source"
        assert "another name of its backend" in raised.value.hint
    again = marked(one, 300)
    receipt = sink(**settings).write([first, again], ignore)
    assert (receipt.published, receipt.duplicates) == (5, 5)
    stored = [message.event_id for message in read(nats.url, stream)]
    assert stored == ids_of(first) + ids_of(again)


def test_a_source_that_was_replaced_goes_on_in_its_next_era(sink: SinkOf) -> None:
    one, other = MARKS["postgres"]
    sink(delivery="exactly-once").write([marked(one, 100)], ignore)
    later = marked(other, 1, cursor="e0001-00000000/00000001")
    assert sink(delivery="exactly-once").write([later], ignore).published == 5
    with pytest.raises(SettingsError, match="another source"):
        sink(delivery="exactly-once").write([marked(one, 300)], ignore)


def test_messages_of_before_that_do_not_say_their_source_are_ours(sink: SinkOf) -> None:
    sink(delivery="exactly-once").write([batch_of(5, 100)], ignore)
    found = sink(delivery="exactly-once").write([marked(MARKS["postgres"][0], 200)], ignore)
    assert found.published == 5


def test_a_cluster_whose_id_may_not_be_read_is_the_same(sink: SinkOf) -> None:
    known = MARKS["mongodb"][0]
    sink(delivery="exactly-once").write([marked({**known, "cluster": "rs0/"}, 100)], ignore)
    assert sink(delivery="exactly-once").write([marked(known, 200)], ignore).published == 5


def test_message_ids_keep_both(sink: SinkOf) -> None:
    one, other = MARKS["postgres"]
    for mark, commit in ((one, 100), (other, 1)):
        found = sink(delivery="deduplicated").write([marked(mark, commit)], ignore)
        assert (found.published, found.duplicates) == (5, 0)


@pytest.mark.parametrize("feed", MARKS)
@pytest.mark.parametrize("messages", ["change", "batch"])
def test_a_message_id_of_another_source_is_never_taken_for_ours(
    sink: SinkOf, nats: Nats, stream: str, feed: str, messages: str
) -> None:
    """Two servers count alike, so changes of both have one id; also where some are ours."""
    one, other = MARKS[feed]
    settings = {"delivery": "deduplicated", "messages": messages}
    first = marked(one, 100)
    assert sink(**settings).write([first], ignore).published == 5
    for before in ([], [marked(other, 99)]):
        with pytest.raises(SettingsError, match="another source that is also named") as raised:
            sink(**settings).write([*before, marked(other, 100)], ignore)
        assert raised.value.code == "jetstream.other-source"
    found = sink(**settings).write([first], ignore)
    assert (found.published, found.duplicates) == (0, 5), "a replay is one"
    plain = sink(**settings).write([batch_of(5, 100)], ignore)
    assert (plain.published, plain.duplicates) == (0, 5), "of before marks"


def test_sources_that_share_a_subject_keep_their_ids_apart(sink: SinkOf, stream: str) -> None:
    """Slots of other names on two servers: nothing but the id says that a change is stored."""
    one, other = MARKS["postgres"]
    settings = {"delivery": "deduplicated", "subject": f"{stream}.{{collection}}"}
    assert sink(**settings).write([marked(one, 100)], ignore).published == 5
    with pytest.raises(SettingsError, match="default/another"):
        sink(**settings).write([marked(other, 100, partition="another")], ignore)
    same = sink(**settings).write([marked(one, 100, partition="another")], ignore)
    assert same.duplicates == 5, "two slots of one server have one change once"
