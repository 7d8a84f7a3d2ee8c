"""Pipelines without Spark, each with a NATS server of its own, and the targets."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.consumer.mirror.world import World
from tests.servers import Database, Nats, Postgres


@pytest.fixture
def world_of(
    database: Database, own_nats: Callable[..., Nats], tmp_path: Path
) -> Iterator[Callable[..., World]]:
    """`world_of(**sink)`: not started, so that tables may be made first."""
    made: list[World] = []

    def make(nats: Nats | None = None, **sink: Any) -> World:
        made.append(World(database, nats or own_nats(), tmp_path, **sink))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(params=["sqlite", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path, postgres: Postgres) -> Iterator[str]:
    """The URL of a target of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'mirror.db'}"
        return
    with postgres.database() as fresh:
        yield fresh.url


@pytest.fixture
def file(tmp_path: Path) -> str:
    """The URL of a target, where the claim is of none."""
    return f"sqlite:///{tmp_path}/m.db"
