"""`penstock check` of a MongoDB source: its saved position is looked at, too."""

import json
from pathlib import Path

import yaml
from click.testing import CliRunner

from penstock.cli.check import command
from penstock.config import load_pipeline
from penstock.feeds.mongodb.feed import PARTITION
from penstock.model.position import Bookmark
from penstock.reading.positions import Positions
from tests.mongo import Shop


def checked(file: Path) -> dict[str, str]:
    """Subject -> level, of the source's findings."""
    result = CliRunner().invoke(command, [str(file), "--json"])
    found = json.loads(result.output)
    return {
        each["subject"].removeprefix("backend default: "): each["level"]
        for each in found
        if each["subject"].startswith("backend default")
    }


def test_the_saved_position_is_held_against_the_oplog(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    shop.db.users.insert_one({})
    document = {
        "name": "test",
        "backends": [{"type": "mongodb", "connection": shop.url, "database": shop.name}],
        "sink": {"type": "memory"},
        "state": str(tmp_path / "state"),
    }
    file.write_text(yaml.safe_dump(document))
    assert "saved position" not in checked(file), "there is none yet"
    pipeline = load_pipeline(file)
    positions = Positions.of(pipeline.positions, "test", "default", pipeline.checkpoint)
    positions.begin(shop.feed().begin())
    assert checked(file)["saved position"] == "ok"
    lost = Bookmark(mark={"token": {"_data": "00FF00FF00FF00FF"}})
    positions.load()
    positions.save({PARTITION: lost}, force=True)
    assert checked(file)["saved position"] == "error"
