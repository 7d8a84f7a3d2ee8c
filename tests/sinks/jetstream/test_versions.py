"""Every delivery on every nats-server that is installed beside the newest (`scripts/setup`)."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.demo.servers import beside_python
from penstock.model.errors import SettingsError
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSink
from tests.progress import Noted
from tests.servers import Nats
from tests.sinks.changes import batch_of, ids_in, ids_of

pytestmark = pytest.mark.fault

BESIDE = Path(sys.prefix) / "nats-server"


def programs() -> dict[str, Path]:
    """Version, as its folder says -> the program."""
    found = {path.relative_to(BESIDE).parts[0]: path for path in BESIDE.glob("*/**/nats-server")}
    return {name: path for name, path in sorted(found.items()) if path.is_file()} | {
        "newest": beside_python("nats-server", extra="demo")
    }


@pytest.fixture(params=programs())
def server(request: pytest.FixtureRequest) -> Iterator[Nats]:
    one = Nats()
    one.bin = programs()[request.param]
    with one:
        yield one


def version(told: list[Any]) -> tuple[int, ...]:
    said = next(note["details"]["version"] for note in told if "details" in note)
    return tuple(map(int, re.findall(r"\d+", said)[:3]))


def test_auto_picks_the_best_and_says_why(server: Nats, sink_of: Any) -> None:
    sink = sink_of(server.url)
    told = Noted()
    receipt = sink.write([batch_of(1500, 1)], told)
    assert receipt.published == 1500
    if version(told) >= (2, 12, 1):
        assert receipt.numbers["delivery"] == "exactly-once"
        assert receipt.numbers["details"]["reason"] == "the stream takes atomic batches"
    else:
        assert receipt.numbers["delivery"] == "deduplicated"
        assert "has no atomic batches" in receipt.numbers["details"]["reason"]
        with pytest.raises(SettingsError, match="exactly-once is not possible"):
            sink_of(server.url, delivery="exactly-once").write([batch_of(1)], ignore)
    assert {note["delivery"] for note in told if "delivery" in note} == {
        receipt.numbers["delivery"]
    }


@pytest.mark.parametrize("delivery", ["auto", "deduplicated"])
def test_a_kill_in_the_middle_loses_doubles_and_reorders_nothing(
    delivery: str, server: Nats, settings_of: Any
) -> None:
    settings = settings_of(server.url, delivery=delivery, timeout="1s")
    sink = JetStreamSink(settings)
    batches = [batch_of(400, n) for n in range(1, 31)]

    def killed() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number in (8, 20):
                server.kill()
                server.start()
            yield batch

    sink.write(killed(), ignore)
    again = sink.write(batches[-5:], ignore)
    assert (again.published, again.duplicates) == (0, 2000)
    assert ids_in(server.url, settings.stream) == ids_of(*batches)
