"""Where plug-ins are looked for."""

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from penstock.model.errors import SettingsError
from penstock.process import plugins
from penstock.process.plugins import plugin


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One for each time that the installed packages are looked for."""
    found: list[Any] = []

    def looked() -> Any:
        found.append(entry_points())
        return found[-1]

    plugins._installed.cache_clear()
    plugin.cache_clear()
    monkeypatch.setattr(plugins, "entry_points", looked)
    return found


def test_packages_are_looked_for_once(looks: list[Any]) -> None:
    """With jars on the path, as in Spark's workers, it takes a tenth of a second."""
    for kind, name in (("feeds", "postgres"), ("sinks", "jetstream"), ("stores", "sqlite")):
        plugin(kind, name)
    assert len(looks) == 1


def test_one_that_comes_later_is_found(
    looks: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin("feeds", "memory")
    (info := tmp_path / "later-1.dist-info").mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: later\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[penstock.stores]\nlater = pathlib:Path\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert plugin("stores", "later") is Path
    monkeypatch.undo()
    with pytest.raises(SettingsError, match="there is no store 'latest'"):
        plugin("stores", "latest")
