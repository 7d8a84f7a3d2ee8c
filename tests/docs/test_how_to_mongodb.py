"""docs/how-to/mongodb.md and docs/reference/mongodb.md are true: the commands are run, and the role
suffices."""

import re
from typing import Any

import pymongo
import yaml

from penstock.feeds.mongodb import MongoFeed, MongoSettings
from penstock.feeds.mongodb.losses import HINTS
from penstock.wire.changestream.changes import OPERATIONS
from tests.docs.pages import DOCS, blocks
from tests.servers import Secantus

PAGE = (DOCS / "how-to" / "mongodb.md").read_text()
REFERENCE = (DOCS / "reference" / "mongodb.md").read_text()
# The stand-in has one size of oplog, and no cluster parameters.
_REAL_ONLY = ("replSetResizeOplog", "setClusterParameter")


def commands() -> list[tuple[str, dict[str, Any]]]:
    """Database and command of each line."""
    found = []
    for block in blocks(PAGE, "js"):
        for line in block.splitlines():
            said = re.fullmatch(r'db\.getSiblingDB\("(\w+)"\)\.runCommand\((\{.*\})\)', line)
            assert said, line
            found.append((said[1], yaml.safe_load(said[2])))
    return found


def test_the_role_of_the_page_suffices() -> None:
    server = Secantus()
    with server:
        with pymongo.MongoClient(server.url) as client:
            client.shop.create_collection("orders")
            for database, command in commands():
                if next(iter(command)) not in _REAL_ONLY:
                    client[database].command(command)
            client.admin.command("createUser", "nobody", pwd="p", roles=[])
        server.stop()
        server.options["auth"] = True
        server.start()
        levels = {
            user: {
                finding.subject: (finding.level, finding.remedy)
                for finding in MongoFeed(_settings(server, user)).check()
            }
            for user in ("penstock:change%20me", "nobody:p")
        }
        assert "error" not in {level for level, _ in levels["penstock:change%20me"].values()}
        assert levels["nobody:p"]["change stream"][0] == "error"
        role = next(command for _, command in commands() if "createRole" in command)
        actions = role["privileges"][0]["actions"]
        assert all(each in levels["nobody:p"]["change stream"][1] for each in actions)
        MongoFeed(_settings(server, "penstock:change%20me", before="required")).begin("beginning")


def _settings(server: Secantus, user: str, **more: Any) -> MongoSettings:
    url = server.url.replace("mongodb://", f"mongodb://{user}@") + "/?authSource=admin"
    return MongoSettings.model_validate({"connection": url, "database": "shop", **more})


def test_the_reference_has_every_cause_and_operation() -> None:
    table = REFERENCE[REFERENCE.index("## Lost history of MongoDB") :]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(HINTS)
    for operation in OPERATIONS.values():
        assert f"`{operation}`" in REFERENCE
