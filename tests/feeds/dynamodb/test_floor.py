"""The oldest boto3 that pyproject.toml allows: it has no iterator at a time, and other defaults."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dynamodb.server import StreamsServer

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / ".venv" / "boto3-floor"

# A start at a time, and one at "latest" whose iterator has expired, both with what came before.
READER = """
import json, sys
from datetime import UTC, datetime
import boto3
import penstock

url, key, now = sys.argv[1], sys.argv[2], float(sys.argv[3])
given = dict(endpoint=url, region="eu-central-1", access_key=key, secret_key="b",
             reads=1000, poll=0.001)
def opened(at):
    return penstock.stream("dynamodb", table="users", at=at, **given)
def read(stream):
    found = [next(stream) for _ in range(12)]
    return [record["key"]["id"] for record in found if record]
print(boto3.__version__)
print(json.dumps(read(opened(datetime.fromtimestamp(now - 500, UTC)))))
latest = opened("latest")
token = json.loads(json.dumps(latest.token))
for bookmark in token["partitions"].values():
    bookmark["mark"].pop("iterator", None)  # as after 14 minutes
print(json.dumps(read(opened(token))))
print(json.dumps(read(opened("trim_horizon"))))
"""


def test_the_oldest_boto3_reads_from_a_time_and_from_latest() -> None:
    floor = re.search(r'"boto3>=([\d.]+)', (ROOT / "pyproject.toml").read_text())
    assert floor is not None
    if not (FOLDER / "ready").exists():
        pytest.skip(f"no boto3 {floor[1]} in {FOLDER}: scripts/test installs it there")
    with StreamsServer() as server:
        shard = (stream := server.stream("users")).shard()
        for age in (1000.5, 700.5, 400.5, 200.5):
            stream.put(shard, str(age), at=server.now - age)
        done = subprocess.run(
            [sys.executable, "-c", READER, server.url, server.access_key, str(server.now)],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(FOLDER)},
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            floor[1],
            '["400.5", "200.5"]',
            "[]",
            '["1000.5", "700.5", "400.5", "200.5"]',
        ]
        kinds = {
            request["ShardIteratorType"]
            for operation, request in server.calls
            if operation == "GetShardIterator"
        }
        assert "AT_TIMESTAMP" not in kinds
