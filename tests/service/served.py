"""A pipeline whose service runs without Spark, and what its clients see."""

import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import orjson
import pytest

from penstock.config import parse_pipeline
from penstock.model.errors import Unavailable
from penstock.nats.api import Stored
from penstock.nats.services import asked
from penstock.snapshots.init_stream import InitStream
from penstock.snapshots.records import Records, RunRecord
from penstock.snapshots.statements import RowTransform
from tests.consumer.mirror.world import World
from tests.servers import Database, Nats
from tests.snapshots.gate import Gate
from tests.waiting import until

Json = dict[str, Any]


class Served(World):
    """A pipeline whose service runs without Spark, and what its clients see."""

    def __init__(
        self,
        database: Database,
        nats: Nats,
        folder: Path,
        *,
        backend: Json | None = None,
        **snapshot: Any,
    ) -> None:
        self.database, self.nats, self.folder = database, nats, folder
        self.file = folder / "pipeline.yaml"
        self.name = f"pipe-{uuid.uuid4().hex[:8]}"
        document: Json = {
            "name": self.name, "state": str(folder / "state"),
            "backends": [{
                "name": "shop", "type": "postgres", "connection": database.url,
                "slot": f"s_{database.name}", "publication": "p", "create_publication": True,
                **(backend or {}),
            }],
            "sink": {"type": "jetstream", "url": nats.url, "encoding": "json"},
            "snapshot": snapshot,
        }  # fmt: skip
        self.file.write_bytes(orjson.dumps(document))  # JSON is YAML
        self._open(document)
        self._begin()
        self.table = f"t_{database.name}"
        self.connection.open()
        self.records = Records(self.connection, self.name)

    def start(self, statements: RowTransform | None = None) -> Self:
        self.start_service(statements)
        return self

    def dies(self, number: int, **options: Any) -> str:
        """A snapshot is asked for, and before so many chunks the pipeline is another instance's:
        the id of the snapshot."""
        with pytest.MonkeyPatch.context() as patch:
            gate = Gate(patch, "init.snap.", number)
            self.start()
            snapshot_id = str(self.ask(f"request.{self.table}", **options)["snapshot_id"])
            gate.reached()
            self.owned.end()
            gate.open()
            self.stop_service()
        return snapshot_id

    def ask(self, what: str, **options: Any) -> Json:
        payload = orjson.dumps({"pipeline": self.name, **options})
        with suppress(Unavailable):
            found: Json = orjson.loads(
                asked(self.connection, f"snapshot.{what}", payload, 60).payload
            )
            return found
        return {}

    def accepted(self, table: str) -> str:
        """The id of the snapshot that was asked for."""
        answer = self.ask(f"request.{table}")
        assert answer.get("state") in ("queued", "running"), answer
        return str(answer["snapshot_id"])

    def ended(self, snapshot_id: str) -> RunRecord:
        def ended() -> RunRecord | None:
            record = self.records.get(snapshot_id)
            return record if record is not None and record.has_ended else None

        found = until(ended)
        assert found is not None
        return found

    def taken(self) -> list[tuple[str, str]]:
        return [(each.table, each.state) for each in self.records.all()]

    def chunks(self, snapshot_id: str) -> list[Stored]:
        with InitStream(self.settings, "INIT") as stream:
            return list(stream.chunks((self.table,), snapshot_id))

    def data(self, snapshot_id: str) -> list[list[Json]]:
        """The rows of each chunk."""
        return [orjson.loads(one.payload)["data"] for one in self.chunks(snapshot_id)]

    def transform(self) -> None:
        """The pipeline's next start has statements."""
        document = orjson.loads(self.file.read_bytes()) | {"transform": [{"sql": "any"}]}
        self.pipeline = parse_pipeline(orjson.dumps(document).decode())

    def last(self, subject: str) -> Json:
        found = self.api.last("INIT", subject)
        assert found is not None
        document: Json = orjson.loads(found.payload)
        return document
