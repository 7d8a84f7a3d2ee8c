"""Bloop's documented example, and a stream that splits, read by Bloop and by us from one server."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.feeds.dynamodb import DynamodbFeed
from penstock.stream import Stream
from tests.dynamodb.server import StreamsServer, settings_of
from tests.servers import Moto

pytestmark = [pytest.mark.live]

READER = Path(__file__).with_name("bloop_reader.py")
BLOOP = Path(
    os.environ.get("PENSTOCK_BLOOP_PYTHON")
    or Path(__file__).parents[2] / ".venv" / "bloop" / "bin" / "python"
)


@pytest.fixture
def bloop() -> Path:
    """The Python of an environment with Bloop, which pins an old boto3."""
    if not BLOOP.exists():
        pytest.skip(
            f"no Bloop in {BLOOP}: python -m venv .venv/bloop &&"
            " .venv/bloop/bin/pip install bloop==3.1.1"
        )
    return BLOOP


@pytest.fixture
def moto() -> Iterator[Moto]:
    with Moto() as server:
        yield server


def said(python: Path, *arguments: str) -> list[Any]:
    done = subprocess.run(
        [str(python), str(READER), *arguments], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def meta(record: dict[str, Any]) -> dict[str, Any]:
    """What Bloop's records have, too."""
    found = record["meta"]
    return {
        "created_at": found["created_at"].timestamp(),
        "event": found["event"],
        "sequence_number": found["sequence_number"],
    }


@dataclass
class User:
    id: int
    email: str = ""  # as Bloop has it where it is absent

    class Meta:
        table_name = "users"


def test_bloops_documented_example_gives_the_same_records(bloop: Path, moto: Moto) -> None:
    theirs = said(bloop, "example", moto.url)
    stream = penstock.stream(
        "dynamodb", model=User, at="trim_horizon", endpoint=moto.url, region="eu-central-1",
        access_key="a", secret_key="b",
    )  # fmt: skip
    ours = [next(stream) for _ in theirs]
    assert next(stream) is None
    assert [each["event"]["type"] for each in theirs][:: len(theirs) - 1] == ["insert", "remove"]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine is not None
        assert meta(mine) == {name: other[name] for name in meta(mine)}
        for image in ("new", "old"):
            user = mine[image]
            assert (user and {"id": int(user.id), "email": user.email}) == other[image]


def filled(server: StreamsServer, records: int) -> str:
    """A stream with two generations of splits; its ARN. Times grow as records are written."""
    stream = server.stream("users")
    shards, time = [stream.shard()], server.now - 3600
    for generation in range(3):
        for number in range(records):
            shard = shards[number % len(shards)]
            time += 0.25
            stream.put(shard, f"{generation}/{number}", at=round(time, 3), new={"text": "x" * 40})
        if generation < 2:
            shards = [child for shard in shards for child in stream.split(shard)]
    return stream.arn


def test_a_stream_that_splits_gives_the_same_records_in_the_same_order(bloop: Path) -> None:
    with StreamsServer() as server:
        arn = filled(server, 40)
        *theirs, _ = said(bloop, "read", server.url, arn)
        settings = settings_of(server, reads=1000, poll=0.001)
        stream = Stream(DynamodbFeed(settings), at="trim_horizon")
        ours = []
        while len(ours) < 120:
            record = next(stream)
            ours += [meta(record)] if record else []
    assert ours == theirs
