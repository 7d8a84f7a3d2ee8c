"""Two plug-ins that are installed as anybody's would be: through entry points of a package."""

import sys
from pathlib import Path

import pytest

from penstock.process.plugins import plugin

CODE = """
from pydantic import field_validator

from penstock.feeds import Feed, FeedPlugin
from penstock.model.settings import Duration, Secret, Settings, Size
from penstock.sinks import SinkPlugin


class Pond(Settings):
    name: str
    connection: Secret = Secret("")
    slot: str = "pond"
    publication: str = "pond"
    tables: tuple[str, ...] = ()
    start: str = "slot"

    @field_validator("connection")
    @classmethod
    def _url(cls, value):
        if value.get_secret_value() and "://" not in value.get_secret_value():
            raise ValueError(f"{value.get_secret_value()} is not a URL")
        return value


class Batch(Settings):
    max_size: int = 500
    max_wait: Duration = 0.1
    max_bytes: Size = 1024


class Lake(Settings):
    url: Secret = Secret("")
    stream: str = "CDC"
    subject: str = ""
    encoding: str = "json"
    batch: Batch = Batch()


class Built:
    def __init__(self, settings):
        self.settings = settings


class Water(Built, Feed):
    pass


class Oil(Built):
    def delays(self):
        return iter((1.0,))


OIL = FeedPlugin(settings=Pond, build=Oil)
POND = FeedPlugin(settings=Pond, build=Water)
LAKE = SinkPlugin(settings=Lake, build=Built)
"""

POINTS = """\
[penstock.feeds]
pond = penstock_test_waters:POND
oil = penstock_test_waters:OIL
dry = penstock_test_desert:POND

[penstock.sinks]
lake = penstock_test_waters:LAKE
"""


@pytest.fixture(autouse=True)
def waters(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path with the feed `pond`, the sink `lake` and the broken `dry`."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "penstock_test_waters.py").write_text(CODE)
    (folder / "penstock_test_desert.py").write_text("import a_driver_that_is_not_there\n")
    info = folder / "penstock_test_waters-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: penstock-test-waters\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "penstock_test_waters", raising=False)
    plugin.cache_clear()  # a process looks each plug-in up once; here one is installed per test
    return folder
