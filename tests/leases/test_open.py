"""Stores by their URL."""

from pathlib import Path

import pytest

from penstock.errors import SettingsError
from penstock.leases.memory import MemoryStore
from penstock.leases.open import open_store
from penstock.leases.sqlite import SqliteStore


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///var/shop.db", "var/shop.db"),
        ("sqlite:////var/shop.db", "/var/shop.db"),
        ("sqlite:///C:x", "C:x"),
    ],
)
def test_three_slashes_are_relative_and_four_absolute(url: str, path: str) -> None:
    found = open_store(url)
    assert isinstance(found, SqliteStore)
    assert found.path == Path(path)


def test_memory_is_a_new_store_each_time() -> None:
    assert isinstance(open_store("memory:"), MemoryStore)
    assert open_store("memory:") is not open_store("memory:")


@pytest.mark.parametrize(
    "url",
    ["", "memory", "memory:x", "sqlite:", "sqlite:///", "sqlite://x.db", "redis://h:hunter22"],
)
def test_any_other_url_names_the_known_ones(url: str) -> None:
    with pytest.raises(SettingsError, match=r"known: sqlite:///relative\.db") as error:
        open_store(url)
    assert "hunter22" not in str(error.value)
