"""What the service asks the JVM for while a query has nothing to do."""

from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import GatewayClient
from pyspark.sql import SparkSession

from penstock.microbatch.run_folder import read_task_slots
from penstock.ops.board import Board
from penstock.ops.reports import BatchReport
from penstock.service.supervision import Supervision
from penstock.spark.queries.engine import Engine
from penstock.spark.queries.supervised import EngineLost
from tests.spark.queries.test_query import pipeline_of
from tests.waiting import until

TICKS = 50
TICK = 0.2  # seconds, as the service's


class Begun:
    """In place of `Beginnings`."""

    def __init__(self) -> None:
        self.begun = {"default"}
        self.errors: dict[str, Exception] = {}

    def verify(self) -> None:
        """The pipeline is ours."""


def test_an_idle_tick_asks_the_jvm_twice_and_is_not_needed_often(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = pipeline_of(tmp_path, trigger="50ms")
    engine, board = Engine(pipeline, tmp_path), Board(tmp_path / "board")
    engine._spark = spark
    begun: Any = Begun()
    supervision = Supervision(pipeline, engine.queries, begun, board, tmp_path)
    now = 1000.0

    def tick(seconds: float = TICK) -> None:
        nonlocal now
        now += seconds
        engine.tick(now)
        supervision.tick(now)

    def has_batch() -> bool:
        tick(1.0)
        return board.snapshot().latest(BatchReport, "default").id >= 0

    def is_calm() -> bool:
        tick(1.0)
        return supervision.is_calm(now)

    send, sent = GatewayClient.send_command, list[str]()

    def counted(client: GatewayClient, command: str, *more: Any, **others: Any) -> str:
        sent.append(command)
        answer: str = send(client, command, *more, **others)
        return answer

    try:
        until(has_batch)
        assert read_task_slots(str(tmp_path)) == 2
        monkeypatch.setattr(GatewayClient, "send_command", counted)
        for _ in range(TICKS):
            tick()
        # And of the last micro-batch once a second.
        assert len(sent) <= 2 * TICKS + 3 * (TICKS * TICK + 1)

        until(is_calm)  # the service ticks once a second
        assert not supervision.is_calm(now - 1000)
        spark.streams.active[0].stop()  # and sees the end of a query at once
        until(lambda: not supervision.is_calm(now))

        def gone(*_: Any, **__: Any) -> str:
            raise ConnectionRefusedError

        monkeypatch.setattr(GatewayClient, "send_command", gone)
        with pytest.raises(EngineLost):
            engine.tick(now)
    finally:
        monkeypatch.undo()
        supervision.hand_over()
