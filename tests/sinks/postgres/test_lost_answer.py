"""A connection that ends between COMMIT and its answer: nobody knows whether it was committed, and
nothing is doubled or lost."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from penstock.model.change import WHOLE
from penstock.model.position import PartitionId, Place
from penstock.sinks.postgres import PostgresSink
from penstock.sinks.postgres.settings import PostgresSinkSettings
from tests.progress import Noted
from tests.servers import Database
from tests.sinks.postgres.test_write import rows_of

SHOP, FIRST = PartitionId("shop"), Place("", 0)


class Cut:
    """Passes connections to a server. The answers of some commits are lost: of a pair, the server
    gets the first one before, and never the second, with which the first was tried again."""

    def __init__(self, host: str, port: int) -> None:
        self.commits, self.lost = 0, 0
        self._server = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                threading.Thread(target=self._pass, args=(client, server), daemon=True).start()

    def _pass(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, suppress(OSError):
            while True:
                for ready in wait([client, server]):
                    data = ready.recv(1 << 16)
                    if not data:
                        return
                    if ready is server:
                        client.sendall(data)
                        continue
                    if b"COMMIT\0" in data:
                        self.commits += 1
                        if self.commits % 5 in (3, 4):
                            self.lost += 1
                            if self.commits % 5 == 3:
                                server.sendall(data)
                                server.recv(1 << 16)  # the answer, which nobody gets
                            return
                    server.sendall(data)


@pytest.fixture
def cut(database: Database) -> Iterator[Cut]:
    found = urlsplit(database.url)
    proxy = Cut(str(found.hostname), int(found.port or 5432))
    yield proxy
    proxy.close()


@pytest.mark.parametrize(
    ("create", "options"),
    [
        ("CREATE TABLE items (id int PRIMARY KEY, name text)", {}),
        ("CREATE TABLE items (sid text, id int, name text, PRIMARY KEY (sid, id))", {}),
        ("", {"type": "history", "create": True}),
    ],
)
def test_nothing_is_doubled_or_lost(
    database: Database, cut: Cut, create: str, options: dict[str, Any]
) -> None:
    if create:
        database.execute(create)
    port = urlsplit(database.url).port
    settings = PostgresSinkSettings(
        connection=database.url.replace(f":{port}", f":{cut.port}"),  # type: ignore[arg-type]
        map=[{"backend": "default", "tables": {"items": options}}],  # type: ignore[list-item]
        commit={"wait": 0},  # type: ignore[arg-type]
        workers=1,
    )
    noted, batches = Noted(), []

    def changes() -> Iterator[pa.RecordBatch]:
        for n in range(1, 16):
            gone = [f"DELETE {n - 2}"] if n % 3 == 0 else []
            batch = rows_of(f"INSERT {n} a", f"UPDATE {max(n - 1, 1)} b{n}", *gone, commit=n)
            batches.append(batch)
            yield batch.replace_schema_metadata(WHOLE)
            while noted.position.get(SHOP, FIRST).cursor != batch.column("cursor")[0].as_py():
                yield batch.slice(0, 0)  # each is a commit

    receipt = PostgresSink(settings).write(changes(), noted)
    assert cut.lost >= 6
    assert receipt.published + receipt.duplicates == sum(map(len, batches))
    assert receipt.duplicates, "no commit was known although its answer was lost"
    rows = dict[int, str]()
    for n in range(1, 16):
        rows[n] = "a"
        rows[max(n - 1, 1)] = f"b{n}"
        if n % 3 == 0:
            rows.pop(n - 2)
    current = " WHERE kvsz_end = '9999-01-01Z'" if "type" in options else ""
    assert dict(database.execute(f"SELECT id, name FROM items{current}")) == rows
    if current:  # each transaction made one version of each key that it changed
        versions = database.execute("SELECT id, kvsz_start FROM items")
        assert len(versions) == len(set(versions)) == 15 + 14
