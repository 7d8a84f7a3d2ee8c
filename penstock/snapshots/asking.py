"""Asks the service that runs a pipeline for snapshots, wherever it runs."""

from collections.abc import Mapping
from typing import Any

import orjson

from penstock.config import Pipeline
from penstock.model.errors import SettingsError, Unavailable
from penstock.nats.services import asked
from penstock.nats.subjects import escape
from penstock.snapshots.init_stream import InitStream
from penstock.snapshots.records import is_id

_TIMEOUT = 90.0  # seconds for an answer


def init_stream(pipeline: Pipeline) -> InitStream:
    """Where snapshots are, to be opened. Raises SettingsError where the sink takes none."""
    if (server := pipeline.sink.server()) is None:
        raise SettingsError(
            f"the sink {pipeline.sink.type} takes no snapshots",
            "cli.no-snapshots",
            hint="they are chunks in a stream of NATS: use sink.type: jetstream",
        )
    return InitStream(server.nats, pipeline.snapshot.stream)


def request_snapshot(
    stream: InitStream, pipeline: Pipeline, table: str, options: Mapping[str, Any]
) -> str:
    """The id of a new snapshot of `[[backend.]schema.]table`. Raises SettingsError, Unavailable."""
    subject = "snapshot.request." + ".".join(map(escape, table.split(".")))
    return str(_asked(stream, pipeline, subject, options)["snapshot_id"])


def cancel_snapshot(stream: InitStream, pipeline: Pipeline, snapshot_id: str) -> None:
    """Ends a snapshot soon. Raises SettingsError, Unavailable."""
    if not is_id(snapshot_id):
        raise SettingsError(
            f"{snapshot_id} is no id of a snapshot",
            "snapshots",
            hint="`penstock snapshot FILE list` has them",
        )
    _asked(stream, pipeline, f"snapshot.cancel.{snapshot_id}", {})


def _asked(stream: InitStream, pipeline: Pipeline, subject: str, options: Mapping[str, Any]) -> Any:
    payload = orjson.dumps({"pipeline": pipeline.name, **options})
    try:
        answer = asked(stream.connection, subject, payload, _TIMEOUT)
    except Unavailable as error:
        raise Unavailable(
            f"{error.message}",
            "snapshots.no-answer",
            hint=f"is the pipeline {pipeline.name} running? start it first",
        ) from None
    found = orjson.loads(answer.payload)
    if "error" in found:
        raise SettingsError(found["error"], "snapshots", hint=found.get("hint", ""))
    return found
