"""How often the sink waits for the server: answers counted by the server itself."""

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSettings, JetStreamSink
from tests.servers import Nats, free_port
from tests.work.scenarios import changes

CHANGES = 10_000
# A chain of a thousand has its first and its last message answered; and a session has questions to
# the API when it opens.
MOST = 2 * CHANGES // 1000 + 8


@pytest.fixture
def server() -> Iterator[tuple[Nats, str]]:
    port = free_port()
    with Nats(config={"http": f"127.0.0.1:{port}"}) as nats:
        yield nats, f"http://127.0.0.1:{port}/varz"


def answers(url: str) -> int:
    with urllib.request.urlopen(url, timeout=10) as response:
        sent: Any = json.load(response)
    return int(sent["out_msgs"])


@pytest.mark.parametrize("delivery", ["exactly-once", "auto"])
def test_a_thousand_changes_have_two_answers(server: tuple[Nats, str], delivery: str) -> None:
    nats, monitor = server
    settings = {
        "url": nats.url,
        "stream": "WORK",
        "subject": "work.{collection}",
        "timeout": "60s",
        # Under pressure batches are smaller; a busy machine is no slow server.
        "pressure": {"slow_threshold": "30s", "critical_threshold": "60s"},
    }
    sink = JetStreamSink(JetStreamSettings.model_validate({**settings, "delivery": delivery}))
    before = answers(monitor)
    receipt = sink.write(
        (changes(1000, transaction=number) for number in range(CHANGES // 1000)), ignore
    )
    assert receipt.published == CHANGES
    assert answers(monitor) - before <= MOST
