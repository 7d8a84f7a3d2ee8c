"""What Jupyter shows: every value escaped, drawn again in place, nothing of a row."""

import queue
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

import penstock
from penstock.process.notebook import Drawn


class Hostile(Drawn):
    def __repr__(self) -> str:
        return "<Hostile>"

    def facts(self) -> Mapping[str, Any]:
        return {"<script>": '"><img src=x>', "a & b": 3}


def test_every_name_and_value_is_escaped() -> None:
    html = Hostile()._repr_html_()
    assert "&lt;script&gt;" in html
    assert "&quot;&gt;&lt;img src=x&gt;" in html
    assert "a &amp; b" in html
    assert "&lt;Hostile&gt;" in html
    assert not {"<script>", "<img", "<Hostile"} & set(html.replace("<", " <").split())


def test_what_is_shown_has_neither_rows_nor_secrets(tmp_path: Any) -> None:
    stream = penstock.stream("memory", at="trim_horizon")
    stream.table(rows=10)
    replica = penstock.Replica("nats://me:secret@127.0.0.1:1", f"sqlite:///{tmp_path}/m.db")
    processor = penstock.Processor(
        "memory", leases="memory:", name="shop", observer=penstock.Observer
    )
    shown = [each._repr_html_() for each in (stream, replica, processor)]
    assert "<td" in shown[0]
    assert ">10</td>" in shown[0]
    assert "changes applied" in shown[1]
    assert "partitions held" in shown[2]
    assert [each for each in shown if "secret" in each or "change 1" in each] == []


@pytest.fixture
def kernel() -> Iterator[BlockingKernelClient]:
    manager, client = start_new_kernel(startup_timeout=240)
    try:
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def message(client: BlockingKernelClient, kind: str, holding: str) -> dict[str, Any]:
    """The next output of a kind with a text in its HTML."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        try:
            found = client.get_iopub_msg(timeout=1)
        except queue.Empty:
            continue
        assert found["msg_type"] != "error", found["content"]
        content: dict[str, Any] = found["content"]
        if found["msg_type"] == kind and holding in content["data"].get("text/html", ""):
            return content
    raise AssertionError(f"no {kind} with {holding}")


@pytest.mark.process
def test_a_stream_is_drawn_again_in_place(kernel: BlockingKernelClient) -> None:
    kernel.execute("import penstock; stream = penstock.stream('memory', at='trim_horizon'); stream")
    first = message(kernel, "display_data", ">0</td>")
    assert first["data"]["text/plain"] == "<Stream of memory>"
    kernel.execute("stream.table(rows=123)")
    again = message(kernel, "update_display_data", ">123</td>")
    assert again["transient"]["display_id"] == first["transient"]["display_id"]
