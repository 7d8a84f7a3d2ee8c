"""`penstock run` as a child process, and the stream read back by an independent client."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import nats as nats_py
import ormsgpack
import psutil
import psycopg
import yaml
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from tests.servers import Database, Nats
from tests.servers.postgres import keeping
from tests.waiting import until

# Of Spark's classes; test_class_archive.py makes it. A session costs 3.5 s of CPU then, not 7.
CLASSES = Path(sys.prefix) / "spark-test-classes.jsa"


@dataclass(frozen=True, slots=True)
class Message:
    """One stored message."""

    subject: str
    headers: dict[str, str]
    body: dict[str, Any]
    stored_at: datetime

    @property
    def id(self) -> str:
        return str(self.body["event_id"])


def document(
    folder: Path, database: Database, nats: Nats, stream: str, **more: Any
) -> dict[str, Any]:
    """A pipeline file; `more` replaces or adds top-level keys."""
    return {
        "name": "test",
        "backends": [
            {
                "name": "default",
                "type": "postgres",
                "connection": database.url,
                "slot": f"slot_{database.name}",
                "publication": "pub",
            }
        ],
        "sink": {
            "type": "jetstream",
            "url": nats.url,
            "stream": stream,
            "subject": f"{stream.lower()}.{{collection}}.{{operation}}",
        },
        "state": str(folder / "state"),
        "ops": {"port": 0},
        **more,
    }


def basics(folder: Path) -> dict[str, Any]:
    """What a pipeline file has unless its test says otherwise."""
    return {"name": "test", "state": str(folder / "state"), "ops": {"port": 0}}


class Run:
    """A started pipeline, with the archive of Spark's classes if there is one; its log is in
    `log`."""

    starts_spark = True  # for tests/conftest.py

    def __init__(self, folder: Path, pipeline: dict[str, Any]) -> None:
        self.file = folder / "pipeline.yaml"
        if CLASSES.exists():
            archive = {"class_archive": str(CLASSES)}
            pipeline = {**pipeline, "spark": {**archive, **pipeline.get("spark", {})}}
        pipeline = {**basics(folder), **pipeline}
        self._token = pipeline["ops"].get("token", "")
        self.file.write_text(yaml.safe_dump(pipeline))
        self.log_file = folder / "log"
        command = [sys.executable, "-m", "penstock", "run", str(self.file)]
        command += ["--log-format", "logfmt"]
        with self.log_file.open("ab") as log:
            self._begin = log.tell()
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    @property
    def log(self) -> str:
        return self.log_file.read_bytes()[self._begin :].decode(errors="replace")

    @property
    def url(self) -> str:
        found = re.findall(r"url=(http://\S+)", self.log)
        assert found, "the ops server does not listen yet"
        return str(found[-1])

    def get(self, path: str, method: str = "GET", token: str | None = None) -> tuple[int, str]:
        """With the operators' token, if there is one and no other is given."""
        token = self._token if token is None else token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(self.url + path, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def status(self) -> Any:
        return json.loads(self.get("/status")[1])

    def alive(self) -> None:
        assert self.process.poll() is None, f"the pipeline ended:\n{self.log[-3000:]}"

    def stop(self, timeout: float = 180) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)

    def kill_and_wait(self) -> None:
        """Until its other processes, which go on for a moment, have ended too."""
        others = psutil.Process(self.process.pid).children(recursive=True)
        self.kill()
        _, alive = psutil.wait_procs(others, timeout=60)
        assert not alive, alive


@contextmanager
def running(folder: Path, pipeline: dict[str, Any]) -> Iterator[Run]:
    """Ends what is left of it, by its process id."""
    run = Run(folder, pipeline)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.stop()


def eventually(check: Callable[[], Any], *, seconds: float = 300, run: Run | None = None) -> Any:
    """Waits until `check()` is true and raises nothing; returns what it gave. A check that reads a
    whole stream leaves most of the processor to what it waits for."""
    with keeping():
        deadline = time.monotonic() + seconds
        while True:
            began = time.monotonic()
            problem: object = None
            try:
                if found := check():
                    return found
            except (
                AssertionError,
                OSError,
                KeyError,
                IndexError,
                psycopg.OperationalError,
            ) as error:
                problem = error
            if run is not None:
                run.alive()
            now = time.monotonic()
            assert now < deadline, f"not in {seconds} s: {problem}\n{run and run.log}"
            time.sleep(min(2.0, max(0.2, 2 * (now - began))))


def tree(run: Run) -> list[psutil.Process]:
    """All processes of a run, the service first."""
    service = psutil.Process(run.process.pid)
    return [service, *service.children(recursive=True)]


def send(processes: list[psutil.Process], number: int) -> None:
    """A signal to those that are still there: with a parent or a JVM its workers end by
    themselves, before their turn comes or after."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def commands(processes: list[psutil.Process]) -> list[str]:
    """The command lines of those that are still there."""
    found = []
    for process in processes:
        with suppress(psutil.Error):  # some end while we look
            found.append(" ".join(process.cmdline()))
    return found


def assert_none_is_left(processes: list[psutil.Process]) -> None:
    """All of them end soon; whoever adopts them may reap them later."""

    def runs(process: psutil.Process) -> bool:
        with suppress(psutil.NoSuchProcess):
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return False

    until(lambda: not any(map(runs, processes)), problem=lambda: commands(processes))


def messages(nats: Nats, stream: str, after: int = 0) -> list[Message]:
    """Everything in the stream after a sequence, in its order; nothing if there is no stream."""
    return asyncio.run(_messages(nats.url, stream, after))


def count(nats: Nats, stream: str) -> int:
    """How many messages the stream has; 0 if there is no stream."""
    return asyncio.run(_count(nats.url, stream))


async def _count(url: str, stream: str) -> int:
    connection = await nats_py.connect(url)
    try:
        return int((await connection.jetstream(timeout=60).stream_info(stream)).state.messages)
    except nats_py.js.errors.NotFoundError:
        return 0
    finally:
        await connection.close()


async def _messages(url: str, stream: str, after: int) -> list[Message]:
    connection = await nats_py.connect(url)
    try:
        jetstream = connection.jetstream(timeout=60)
        try:
            state = (await jetstream.stream_info(stream)).state
        except nats_py.js.errors.NotFoundError:
            return []
        if not state.messages or state.last_seq <= after:
            return []
        found, is_read = list[Message](), asyncio.Event()

        async def take(message: Any) -> None:
            found.append(_message(message))
            if message.metadata.num_pending == 0:
                is_read.set()

        # Without flow control, whose pauses take longer than the messages.
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=after + 1,
        )
        await jetstream.subscribe(
            ">", stream=stream, config=config, cb=take, pending_msgs_limit=-1,
            pending_bytes_limit=-1,
        )  # fmt: skip
        await asyncio.wait_for(is_read.wait(), 120)
        return found
    finally:
        await connection.close()


def json_messages(nats: Nats, stream: str, after: int = 0) -> list[dict[str, Any]]:
    """The bodies of a stream whose messages are JSON."""
    return [message.body for message in messages(nats, stream, after)]


def _message(found: Any) -> Message:
    body = json.loads(found.data) if found.data[:1] == b"{" else ormsgpack.unpackb(found.data)
    return Message(found.subject, dict(found.headers or {}), body, found.metadata.timestamp)


def slot_of(database: Database) -> tuple[str, str, bool]:
    """Of its one slot: (confirmed LSN, current LSN, active)."""
    row = database.execute(
        "SELECT confirmed_flush_lsn::text, pg_current_wal_lsn()::text, active"
        " FROM pg_replication_slots WHERE database = current_database()"
    )[0]
    return row[0], row[1], row[2]


# The classes of a JVM that is started in Spark's own way, which scripts/test makes.
STOCK_CLASSES = Path(sys.prefix) / "spark-stock-classes.jsa"
# For such JVMs: what is compiled well pays only much later, and 200 partitions never do.
SHORT_LIVED = " ".join(
    (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.sql.shuffle.partitions=2",
        f"-XX:SharedArchiveFile={STOCK_CLASSES} -Xshare:auto -Xlog:disable"
        if STOCK_CLASSES.exists()
        else "",
    )
)


def environment(**more: str) -> dict[str, str]:
    """This process's environment and more."""
    return {**os.environ, **more}
