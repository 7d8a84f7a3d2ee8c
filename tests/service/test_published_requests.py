"""Requests for snapshots as clients of NATS send them, without a reply subject and with one."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import orjson
import ormsgpack
import pytest
from structlog.testing import capture_logs

from penstock.model.table_schema import TableSchema
from penstock.nats.protocol import hpub, pub
from penstock.nats.services import asked
from penstock.ops.board import Board
from penstock.ops.reports import SourceReport
from penstock.ops.status import assess
from penstock.sinks.jetstream.schemas import SchemaBucket
from tests.servers import Database, Nats
from tests.service.served import Served
from tests.waiting import until as _until

Found = TypeVar("Found")


def until(true: Callable[[], Found]) -> Found:
    return _until(true, 120.0)


MINUTE = 60 * 10**9
HEADERS = b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n"
HOURS = {"max_age": 24 * 60 * MINUTE}


@pytest.fixture
def serve(
    database: Database, own_nats: Callable[..., Nats], tmp_path: Path
) -> Iterator[Callable[..., Served]]:
    """`serve(**snapshot)`: a pipeline that takes the requests of a NATS server of its own, with
    the streams of the bridge's page, of which changes are kept for so long."""
    made: list[Served] = []

    def make(kept: int = HOURS["max_age"], start: bool = True, **snapshot: Any) -> Served:
        served = Served(database, own_nats(), tmp_path, **snapshot)
        made.append(served)
        database.execute(
            f"CREATE TABLE {served.table} (id int PRIMARY KEY, v text);"
            f"INSERT INTO {served.table} SELECT n, 'v' || n FROM generate_series(1, 1000) n"
        )
        for name, age in (("CDC", kept), ("INIT", 7 * 24 * 60 * MINUTE)):
            served.api.create({
                "name": name, "subjects": [f"{name.lower()}.>"], "storage": "file",
                "retention": "limits", "max_age": age, "max_bytes": 2**27, "num_replicas": 1,
                "duplicate_window": min(age, 2 * MINUTE),
            })  # fmt: skip
        return served.start() if start else served

    yield make
    for each in made:
        each.close()


def count(served: Served, state: str = "done") -> int:
    return [record.state for record in served.records.all()].count(state)


def publish(served: Served, table: str = "", payload: bytes = b"") -> None:
    """As `nats pub snapshot.request.TABLE PAYLOAD`."""
    served.connection.send(pub(f"snapshot.request.{table or served.table}", "", payload))
    served.connection.ping()


def told(served: Served, table: str) -> dict[str, Any] | None:
    found = served.api.last("INIT", f"init.error.{table}")
    return None if found is None else orjson.loads(found.payload)


def refusals(lines: Sequence[Any]) -> list[str]:
    """The subjects of the requests that were refused, of the lines of a log."""
    return [line["subject"] for line in lines if line["event"] == "a request is refused"]


def test_a_request_that_is_only_published_begins_a_snapshot(serve: Callable[..., Served]) -> None:
    served = serve()
    publish(served)
    until(lambda: count(served) == 1)
    assert served.last(f"init.meta.{served.table}")["row_count"] == 1000


@pytest.mark.parametrize(
    "payload",
    [b" ", b"{}", b' {"chunk_rows": 10}', ormsgpack.packb({}), ormsgpack.packb({"chunk_rows": 10})],
    ids=["space", "json", "options", "msgpack", "msgpack-options"],
)
def test_its_options_are_json_or_messagepack(serve: Callable[..., Served], payload: bytes) -> None:
    served = serve()
    publish(served, payload=payload)
    until(lambda: count(served) == 1)
    assert len(served.chunks(served.records.all()[0].snapshot_id)) in (1, 100)


def test_errors_of_what_is_only_published_are_in_the_stream_and_in_the_log(
    serve: Callable[..., Served],
) -> None:
    served = serve()
    with capture_logs() as lines:
        publish(served, "none")
        publish(served, "Order%20Lines")
        publish(served, served.table, b"no map")
        found = until(lambda: told(served, served.table))
        until(lambda: len(refusals(lines)) == 3)  # logged after that
    assert found is not None and "no map" in found["error"]
    assert "there are: " in (told(served, "none") or {})["hint"]
    assert "Order Lines" in (told(served, "Order%20Lines") or {})["error"]
    assert refusals(lines) == [
        f"snapshot.request.{table}" for table in ("none", "Order%20Lines", served.table)
    ]


def test_a_subject_that_no_request_has_is_told_in_the_log(serve: Callable[..., Served]) -> None:
    served = serve()
    with capture_logs() as lines:
        for subject in (b"snapshot.request", b"snapshot.request.\xff", b"snapshot.take.users",
                        b"snapshot.take.orders"):  # fmt: skip
            served.connection.send(b"PUB %b 0\r\n\r\n" % subject)
        publish(served, payload=b'{"pipeline": "other"}')
        publish(served)
        until(lambda: count(served) == 1)
    said = [(line["event"], line["subject"]) for line in lines if "subject" in line]
    assert said == [
        ("a request is refused", "snapshot.request"),
        ("a request is refused", "snapshot.request.\ufffd"),
        ("not a request that is known", "snapshot.take.users"),
        ("a request names another pipeline", f"snapshot.request.{served.table}"),
    ]


def test_headers_are_no_hindrance(serve: Callable[..., Served]) -> None:
    served = serve()
    subject = f"snapshot.request.{served.table}".encode()
    served.connection.send(hpub(subject, b"", HEADERS, b""))
    until(lambda: count(served) == 1)


def test_a_stream_that_takes_requests_does_not_matter(serve: Callable[..., Served]) -> None:
    """Its acknowledgement comes to the client as well, before the answer or after it."""
    served = serve()
    served.api.create({"name": "ASKED", "subjects": ["snapshot.request.>"]})
    assert served.ended(served.accepted(served.table)).state == "done"
    served.api.publish(f"snapshot.request.{served.table}", HEADERS, b"")
    until(lambda: count(served) == 2)


def test_a_stream_that_takes_them_and_no_service_is_no_answer(
    serve: Callable[..., Served],
) -> None:
    served = serve(start=False)
    served.api.create({"name": "ASKED", "subjects": ["snapshot.request.>"]})
    with pytest.raises(Exception, match="does not answer"):
        asked(served.connection, f"snapshot.request.{served.table}", b"", 1.0)


def test_a_table_of_another_pipeline_is_left_to_it(serve: Callable[..., Served]) -> None:
    """Two bridges with two slots share an account: the one that lacks a table refuses nothing."""
    served = serve()
    schema = TableSchema(schema="public", table="orders", name=("orders",), version="1", columns=())
    SchemaBucket(served.settings, "other").put(schema)
    with capture_logs() as lines:
        publish(served, "orders")
        publish(served, "none")
        until(lambda: told(served, "none"))
    assert told(served, "orders") is None
    said = [(line["event"], line["subject"]) for line in lines if "subject" in line]
    assert said[0] == ("a request is of another pipeline's table", "snapshot.request.orders")


class TestAMinute:
    """The bridge's page keeps changes for a minute: they are gone when a snapshot is loaded."""

    def test_it_is_said_before_anybody_asks(self, serve: Callable[..., Served]) -> None:
        served = serve(MINUTE, start=False, initial=True)
        with capture_logs() as lines:
            served.start()
            until(lambda: any(each["event"] == "snapshots will be refused" for each in lines))
        board: Board = served.owned._board
        until(lambda: "keeps changes for 0:01:00" in reasons(board))
        served.api.update({**served.api.stream("CDC")["config"], **HOURS})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("penstock.service.snapshots._RETENTION", 0.1)
            served.service._look_at = 0.0
            until(lambda: "snapshots" not in reasons(board))

    def test_the_refusal_is_published(self, serve: Callable[..., Served]) -> None:
        served = serve(MINUTE)
        publish(served)
        found = until(lambda: told(served, served.table))
        assert found is not None and "keeps changes for 0:01:00" in found["error"]

    def test_snapshots_that_take_less_are_taken(self, serve: Callable[..., Served]) -> None:
        served = serve(MINUTE, max_age="20s")
        publish(served)
        until(lambda: count(served) == 1)


def reasons(board: Board) -> str:
    board.post("shop", SourceReport(connected=True))
    status = assess(
        board.snapshot(), name="n", version="0", backends=["shop"], started=board.started,
        now=time.monotonic(),
    )  # fmt: skip
    return " ".join(status.reasons)
