"""Many databases in one backend, one of which hangs and one of which is not there."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FAST
from tests.pipeline.running import eventually, running
from tests.servers import Database, Postgres

MANY = {"max_wal_senders": 120, "max_replication_slots": 200, "max_connections": 400}


# How many answer.
@pytest.fixture(params=[10, pytest.param(48, marks=pytest.mark.thorough)])
def databases(request: pytest.FixtureRequest) -> Iterator[list[Database]]:
    """The sources, and the destination after them."""
    with ExitStack() as stack:
        server = stack.enter_context(Postgres(settings=FAST | MANY))
        yield [stack.enter_context(server.database()) for _ in range(request.param + 1)]


def test_many_sources_keep_up_while_one_hangs_and_one_is_refused(
    databases: list[Database], tmp_path: Path
) -> None:
    *shops, target = databases
    several = len(shops)
    for shop in shops:
        shop.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
        shop.execute("INSERT INTO items VALUES (1, 'before')")
    target.execute("CREATE TABLE items (sid text, id int, note text, PRIMARY KEY (sid, id))")
    # The kernel takes connections, and nothing answers them.
    with closing(socket.create_server(("127.0.0.1", 0), backlog=100)) as silent:
        port = silent.getsockname()[1]
        sources = [{"sid": f"s{n}", "connection": each.url} for n, each in enumerate(shops)]
        sources.insert(0, {"sid": "hangs", "connection": f"postgresql://127.0.0.1:{port}/x"})
        sources.insert(5, {"sid": "refused", "connection": "postgresql://127.0.0.1:1/x"})
        pipeline: dict[str, Any] = {
            "name": "test", "state": str(tmp_path / "state"), "ops": {"port": 0},
            "backends": [{
                "name": "shops", "type": "postgres", "sources": sources, "connect_timeout": 3,
            }],
            "sink": {
                "type": "postgres", "connection": target.url,
                "map": [{"backend": "shops", "tables": {"items": None}}],
            },
        }  # fmt: skip

        def have(rows: int) -> bool:
            found = target.execute("SELECT count(*), count(DISTINCT sid) FROM items")
            return found == [(rows * several, several)]

        with running(tmp_path, pipeline) as run:
            eventually(lambda: have(1), run=run)
            for number in range(2, 7):
                for shop in shops:
                    shop.execute(f"INSERT INTO items VALUES ({number}, 'after')")
                # Tables may be loaded before Spark has begun.
                seconds = 300 if number == 2 else 60
                eventually(partial(have, number), seconds=seconds, run=run)
            for sid in ("hangs", "refused"):
                eventually(lambda sid=sid: sid in run.get("/health")[1], run=run)
            assert "Traceback" not in run.log
