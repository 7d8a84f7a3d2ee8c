"""The example runs as its docstring says."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.pipeline.running import SHORT_LIVED, environment, eventually, json_messages
from tests.servers import Database, Nats

pytestmark = [pytest.mark.live, pytest.mark.spark]

EXAMPLE = Path(__file__).parents[2] / "examples" / "library.py"

TABLE = """
CREATE TABLE customers (id int PRIMARY KEY, country text);
CREATE PUBLICATION shop FOR TABLE customers
"""


def test_the_library_example_publishes_what_it_selects_and_goes_on_from_its_checkpoint(
    database: Database, nats: Nats, tmp_path: Path
) -> None:
    database.execute(TABLE)
    command = [sys.executable, str(EXAMPLE)]
    env = environment(
        PG_URL=database.url,
        NATS_URL=nats.url,
        CHECKPOINT=str(tmp_path / "cp"),
        JDK_JAVA_OPTIONS=SHORT_LIVED,
    )
    for first, tenants in ((1, ["NZ", "NZ"]), (11, ["NZ", "NZ", "FJ", "FJ"])):
        log = (tmp_path / "log").open("ab")
        process = subprocess.Popen(command, env=env, cwd=tmp_path, stdout=log, stderr=log)
        try:
            eventually(lambda: _active(database))
            country = tenants[-1]
            database.execute("INSERT INTO customers VALUES (%s, %s)", (first, country))
            database.execute("UPDATE customers SET id = id + 1 WHERE id = %s", (first,))
            database.execute("DELETE FROM customers WHERE id = %s", (first + 1,))
            expected = len(tenants)
            eventually(lambda n=expected: len(json_messages(nats, "EXAMPLE")) >= n)
            # A deletion would have come by now: it is in the same batch, or the next.
            time.sleep(1)
        finally:
            process.terminate()
            process.wait(180)
            log.close()
        eventually(lambda: not _active(database))
        assert [body["tenant"] for body in json_messages(nats, "EXAMPLE")] == tenants


def _active(database: Database) -> bool:
    slots = database.execute(
        "SELECT active FROM pg_replication_slots WHERE database = current_database()"
    )
    return bool(slots) and bool(slots[0][0])
