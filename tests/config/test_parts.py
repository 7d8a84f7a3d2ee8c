"""Several parts of what runs a pipeline are as one."""

import pytest

from penstock.config import Pipeline, parse_pipeline
from penstock.config.parts import PipelinePart, PipelineParts

_FILE = "{backends: [{type: memory}], sink: {type: memory}}"


class Told(PipelinePart):
    def __init__(self, name: str, told: list[str]) -> None:
        self._name, self._told = name, told

    def follow(self, pipeline: Pipeline, changed: object) -> None:
        self._told.append(f"{self._name} follows {pipeline.name}")

    def tick(self, now: float) -> None:
        self._told.append(f"{self._name} ticks at {now}")

    def close(self) -> None:
        self._told.append(f"{self._name} closes")
        if self._name == "a":
            raise OSError


def test_parts_follow_tick_and_close_in_their_order_and_all_are_closed() -> None:
    told: list[str] = []
    parts = PipelineParts(Told("a", told), PipelineParts(Told("b", told), Told("c", told)))
    with pytest.raises(OSError), parts:
        parts.follow(parse_pipeline(_FILE), {"default"})
        parts.tick(1.0)
    assert told == [
        "a follows penstock", "b follows penstock", "c follows penstock",
        "a ticks at 1.0", "b ticks at 1.0", "c ticks at 1.0",
        "a closes", "b closes", "c closes",
    ]  # fmt: skip
