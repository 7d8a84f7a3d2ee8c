"""The tutorial's own pipeline, step by step: SQL, files, a kill, and what is stored after it."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import DOCS, blocks, section
from tests.pipeline.running import Run, eventually, json_messages
from tests.servers import Database, Nats, Postgres
from tests.slots import drop_slot

pytestmark = pytest.mark.fault

PAGE = (DOCS / "tutorial.md").read_text()
FILE, MORE = blocks(PAGE, "yaml")
ENDS = ["hello", "world", "water", None]  # of step 4: two inserts, an update, a delete


@pytest.fixture
def shop(postgres: Postgres) -> Iterator[Database]:
    with postgres.database() as database:
        yield database


def sql(database: Database, heading: str) -> None:
    for block in blocks(section(PAGE, heading), "sql"):
        database.execute(block)


def test_every_step_gives_what_the_page_says(shop: Database, nats: Nats, tmp_path: Path) -> None:
    def pipeline(text: str) -> dict[str, object]:
        text = text.replace("${PG_URL}", shop.url).replace("${NATS_URL}", nats.url)
        # Servers are shared, and others' tests have slots, ports and folders, too.
        text = text.replace("slot: notes", f"slot: {slot}").replace("port: 9191", "port: 0")
        return {**yaml.safe_load(text), "state": str(tmp_path / "state")}

    def started(text: str) -> Run:
        run = Run(tmp_path, pipeline(text))
        eventually(lambda: run.get("/ready")[0] == 200, run=run)
        return run

    def stored() -> list[str | None]:
        bodies = json_messages(nats, "NOTES")
        return [body["data"] and body["data"]["body"] for body in bodies]

    slot = f"notes_{shop.name}"
    sql(shop, "3. Publish a table of your own")
    run = started(FILE)
    try:
        sql(shop, "4. Run it")
        eventually(lambda: len(stored()) == len(ENDS), run=run)
        run.kill()
        sql(shop, "5. Kill it")
        run = started(FILE)
        eventually(lambda: stored()[len(ENDS) :] == ["while it was down"] * 5, run=run)
        assert stored()[:3] == ENDS[:3]
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(120) == 0
        run = started(FILE + MORE)
        sql(shop, "6. Transform changes")
        eventually(lambda: stored()[9:] == ["after the delete"], run=run)
        assert run.stop() == 0
    finally:
        if run.process.poll() is None:
            run.stop()
    drop_slot(shop, slot)
