"""The world that faults strike: servers, a bad network, a load, and one pipeline or two."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tests.chaos.proxy import Proxy
from tests.pipeline.running import Run, document
from tests.pipeline.truth import Truth
from tests.servers import Database, Nats, Postgres

STREAM = "CHAOS"
SETTLED = 180.0  # seconds that a round may take, once all is mended, until everything arrived
FLOWING = 120.0  # seconds until changes flow again

TABLE = """
CREATE TABLE items (id bigserial PRIMARY KEY, who int, note text);
CREATE PUBLICATION pub FOR TABLE items
"""

# What is added to the pipeline file: the ways through Spark.
PIPELINES: dict[str, dict[str, Any]] = {
    "default": {},
    "interval": {"spark": {"trigger": "200ms"}},
    "rows": {"transform": [{"sql": "SELECT * FROM changes WHERE collection <> 'audit'"}]},
}

# Timeouts that the faults outlast. (The duplicate window of exactly-once, 0.1 s, any replay does.)
SINK = {
    "timeout": "1s",
    "delivery": "exactly-once",
    "breaker": {"timeout": "2s"},
}
BACKEND = {"connect_timeout": "2s", "silence": "3s"}
SERVER = {"fsync": False, "full_page_writes": False, "wal_sender_timeout": "3s"}


class Load:
    """Writes transactions over a connection of its own, whatever happens to the server: inserts,
    updates and deletes, now and then a large one or one that is rolled back."""

    def __init__(self, database: Database, seed: int) -> None:
        self._database = database
        self._chance = random.Random(seed)
        self._stop = threading.Event()
        self._running = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is written meanwhile."""
        with self._running:
            yield

    def stop(self) -> None:
        """For good."""
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with psycopg.connect(
                    self._database.url, autocommit=True, connect_timeout=5
                ) as connection:
                    while not self._stop.wait(self._chance.uniform(0.02, 0.15)):
                        with self._running:
                            self._transaction(connection)
            except (
                psycopg.OperationalError
            ):  # the server is away: what it did not confirm, it may have done
                self._stop.wait(0.2)

    def _transaction(self, connection: psycopg.Connection[Any]) -> None:
        chance = self._chance
        rows = 3000 if chance.random() < 0.02 else chance.randint(1, 20)
        with connection.transaction() as transaction:
            connection.execute(
                "INSERT INTO items (who, note) SELECT n, repeat('x', mod(n, 300))"
                " FROM generate_series(1, %s) n",
                (rows,),
            )
            recent = "WHERE id > currval('items_id_seq') - 30"
            connection.execute(f"UPDATE items SET who = who + 1 {recent}")
            connection.execute("DELETE FROM items WHERE id = currval('items_id_seq') - 10")
            if chance.random() < 0.05:
                raise psycopg.Rollback(transaction)


class Loads:
    """Several at the same time."""

    def __init__(self, loads: Sequence[Load]) -> None:
        self._loads = loads

    @contextmanager
    def paused(self) -> Iterator[None]:
        """See `Load`."""
        with ExitStack() as stack:
            for load in self._loads:
                stack.enter_context(load.paused())
            yield

    def stop(self) -> None:
        """See `Load`."""
        for load in self._loads:
            load.stop()


@dataclass
class World:
    """Everything that runs; `run` is the pipeline of the moment. `servers` and the `links` to them
    are named as the targets of faults."""

    folder: Path
    servers: dict[str, Nats | Postgres]
    links: dict[str, Proxy]
    load: Load | Loads
    pipeline: dict[str, Any]
    run: Run = field(init=False)
    _runs: list[Run] = field(default_factory=list)

    def start(self, host: Path | None = None) -> Run:
        """The pipeline, again on a host (a folder with its state), or on another one."""
        if host is None:
            host = self.folder / f"host{len(self._runs)}"
            host.mkdir()
        self._runs.append(Run(host, {**self.pipeline, "state": str(host / "state")}))
        return self._runs[-1]

    def processes(self, what: str) -> list[psutil.Process]:
        """The pipeline's own: `jvm`, `worker` (Python below Spark), or `pipeline` (all of it)."""
        top = psutil.Process(self.run.process.pid)
        found = top.children(recursive=True)
        if what == "pipeline":
            return [top, *found]
        return [one for one in found if _is_java(one) == (what == "jvm")]

    def until(self, true: Callable[[], bool], seconds: float, problem: str) -> None:
        """Waits, as long as the pipeline runs."""
        deadline = time.monotonic() + seconds
        while not true():
            code = self.run.process.poll()
            assert code is None, self.problem(f"the pipeline ended by itself with {code}")
            assert time.monotonic() < deadline, self.problem(f"{problem} in {seconds} s")
            time.sleep(0.2)

    def problem(self, what: str) -> str:
        """With what the pipeline says."""
        try:
            status = self.run.get("/status")[1]
        except (OSError, AssertionError) as error:
            status = str(error)
        log = f"log ({self.run.log_file}):\n{self.run.log[-3000:]}"
        return f"{what}\nstatus: {status}\n{log}"

    def close(self) -> None:
        """Ends what runs, frozen or not."""
        for run in self._runs:
            if run.process.poll() is None:
                run.kill()


def _is_java(process: psutil.Process) -> bool:
    try:
        return process.name() == "java"
    except psutil.Error:
        return False


@contextmanager
def world(folder: Path, seed: int, pipeline: str) -> Iterator[tuple[World, Truth]]:
    """A world with its pipeline started, and what was committed in it."""
    with ExitStack() as stack:
        postgres = stack.enter_context(Postgres(settings=SERVER))
        nats = stack.enter_context(Nats())
        database = stack.enter_context(postgres.database("chaos"))
        links = {
            "postgres": Proxy(postgres.host, postgres.port),
            "nats": Proxy(nats.host, nats.port),
        }
        for proxy in links.values():
            stack.callback(proxy.close)
        database.execute(TABLE)
        truth = Truth(database)
        database.execute("SELECT pg_create_logical_replication_slot('slot_chaos', 'pgoutput')")
        load = Load(database, seed)
        stack.callback(load.stop)
        text = document(folder, database, nats, STREAM, **PIPELINES[pipeline])
        backend = text["backends"][0]
        backend |= BACKEND
        backend["connection"] = database.url.replace(
            f":{postgres.port}/", f":{links['postgres'].port}/"
        )
        text["sink"] |= {**SINK, "url": f"nats://127.0.0.1:{links['nats'].port}"}
        made = World(folder, {"postgres": postgres, "nats": nats}, links, load, text)
        stack.callback(made.close)
        made.run = made.start()
        yield made, truth
