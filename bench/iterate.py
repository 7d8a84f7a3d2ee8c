"""CPU a record of the iterator on DynamoDB Streams, of Bloop and of a bare boto3 loop, in one run.

All read the same stream from the test suite's scripted server, each in a process of its own. The
readers take turns, and the least of several runs counts.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .iterators import READERS

if TYPE_CHECKING:
    from tests.dynamodb.server import StreamsServer

_SCRIPT = Path(__file__).with_name("iterators.py")
# What the wanted ratio compares.
_OURS, _THEIRS = "penstock", "bloop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """Microseconds of CPU a record, by reader; without Bloop where it is not installed."""

    records: int
    bytes_each: int
    cpu: dict[str, float]

    @property
    def ratio(self) -> float | None:
        """How many times our records per second of CPU are Bloop's; None without Bloop."""
        return self.cpu[_THEIRS] / self.cpu[_OURS] if _THEIRS in self.cpu else None


def bloops_python() -> Path | None:
    """The Python of Bloop's environment: PENSTOCK_BLOOP_PYTHON, or what scripts/test makes."""
    given = os.environ.get("PENSTOCK_BLOOP_PYTHON")
    made = Path(__file__).parents[1] / ".venv" / "bloop" / "bin" / "python"
    found = Path(given) if given else made
    return found if found.exists() else None


def iterate(*, records: int, runs: int = 1) -> Iteration:
    """One table of figures. Raises RuntimeError when a reader fails."""
    from tests.dynamodb.server import StreamsServer  # boto3, which no other benchmark needs

    bloop = bloops_python()
    pythons = {
        reader: bloop if reader.startswith(_THEIRS) else Path(sys.executable) for reader in READERS
    }
    cpu: dict[str, float] = {}
    with StreamsServer() as server:
        arn, size = _filled(server, records)
        for _ in range(runs):
            for reader, python in pythons.items():
                if python is not None:
                    spent = _read(python, reader, server.url, arn, records)
                    cpu[reader] = min(spent, cpu.get(reader, spent))
    return Iteration(records=records, bytes_each=size, cpu=cpu)


def _filled(server: "StreamsServer", records: int) -> tuple[str, int]:
    stream = server.stream("users")
    shards = [stream.shard() for _ in range(4)]
    for number in range(records):
        shard = shards[number % len(shards)]
        image = {"text": "x" * 150, "number": number, "flag": True}
        at = round(server.now - 60, 3)
        stream.put(shard, f"user{number}", "UPDATE", at=at, new=image, old=image)
    return stream.arn, sum(map(len, shards[0].records)) // max(1, len(shards[0].records))


def _read(python: Path, reader: str, url: str, arn: str, records: int) -> float:
    done = subprocess.run(
        [str(python), str(_SCRIPT), reader, url, arn, str(records)], check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{reader} failed: {done.stderr}")
    return float(json.loads(done.stdout)["microseconds"])
