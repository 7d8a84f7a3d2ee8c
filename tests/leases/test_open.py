"""Stores by their URL."""

import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.leases import open_store
from penstock.leases.memory import MemoryStore
from penstock.leases.sqlite import SqliteStore
from penstock.model.errors import SettingsError
from penstock.process.plugins import plugin, to_install
from tests.docs.pages import DOCS, blocks


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
    ("url", "hint"),
    [
        ("memory:s3cret", "write `memory:`"),
        *((f"sqlite:{rest}", "write sqlite:") for rest in ("", "///", "//s3cret.db")),
        ("postgresql:s3cret", "postgresql://"),
        *((f"nats:{rest}", "/BUCKET") for rest in ("s3cret", "//me:s3cret@h:4222")),
        *((f"nats://me:s3cret@h/{rest}", "/BUCKET") for rest in ("", "a b", "b?color=red")),
        *((f"mongodb:{rest}", "/DATABASE") for rest in ("s3cret", "//me:s3cret@h", "//s3cret@/p")),
        *((f"cosmos://:s3cret@{rest}", "DATABASE") for rest in ("h/d", "/d/c", "h/d/c/e")),
        *((f"cosmos://:s3cret@{rest}", "DATABASE") for rest in ("h/d/c?ttl=1", "h:port/d/c")),
        *((f"etcd://me:s3cret@{rest}", "/PREFIX") for rest in ("h:2379", "h/", "/p", "h,/p")),
        *((f"etcd://me:s3cret@h{rest}", "/PREFIX") for rest in (":/p", ":x/p", "/p?color=red")),
        *((f"etcd://me:s3cret@h/p?{rest}", "/PREFIX") for rest in ("tls=maybe", "cert=a")),
    ],
)
def test_a_malformed_url_names_the_right_form_and_hides_the_password(url: str, hint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        open_store(url)
    assert hint in caught.value.hint
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["postgresql://me:s3cret@h/d", "nats://me:s3cret@h/b", "mongodb://me:s3cret@h/d",
     "cosmos://:s3cret@h/d/c", "etcd://me:s3cret@h/p"],
)  # fmt: skip
def test_a_store_does_not_print_its_password(url: str) -> None:
    assert "s3cret" not in repr(open_store(url))


@pytest.mark.parametrize("url", ["", "memory", "redis://h:hunter22", "redis:hunter22"])
def test_an_unknown_scheme_names_the_known_ones(url: str) -> None:
    with pytest.raises(SettingsError, match=r"known: cosmos, etcd, .*memory, .*sqlite") as error:
        open_store(url)
    assert "hunter22" not in str(error.value)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with the store of the how-to page, and one whose driver is not installed."""
    [toml] = blocks((DOCS / "how-to" / "write-a-store.md").read_text(), "toml")
    point = toml.splitlines()[1].replace('"', "")
    (tmp_path / "a_store.py").write_text("import a_driver.that_is_not_there\n")
    info = tmp_path / "stores_of_others-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        'Name: stores-of-others\nVersion: 1.0\nRequires-Dist: a-driver>=2; extra == "fast"\n'
    )
    (info / "entry_points.txt").write_text(f"[penstock.stores]\n{point}\nbroken = a_store:Store\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugin.cache_clear()
    yield
    plugin.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_a_store_of_another_package_keeps_the_positions_of_a_pipeline(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        f"""
        name: shop
        backends: [{{name: default, type: memory}}]
        sink: {{type: memory}}
        positions: jsonfile://{tmp_path}/positions.json
        """
    )
    run = CliRunner()
    done = run.invoke(main, ["positions", str(file), "set", "default/0", "17:0", "--yes"])
    assert done.exit_code == 0, done.output
    done = run.invoke(main, ["positions", str(file), "show", "default/0"])
    assert "17:0" in done.output
    names = {row["name"] for row in orjson.loads((tmp_path / "positions.json").read_bytes())}
    assert "shop/default/0" in names


@pytest.mark.usefixtures("installed")
def test_a_missing_driver_names_the_extra_of_the_package_that_has_the_store() -> None:
    with pytest.raises(SettingsError, match="'a_driver'") as error:
        open_store("broken://h/db")
    assert error.value.hint == "pip install 'stores-of-others[fast]'"


@pytest.mark.parametrize(
    ("scheme", "module", "extra"),
    [
        ("postgres", "psycopg", "postgres"),
        ("postgresql", "psycopg", "postgres"),
        ("mongodb+srv", "pymongo", "mongodb"),
        ("etcds", "urllib3", "etcd"),
    ],
)
def test_a_missing_driver_of_ours_names_our_extra(
    scheme: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("penstock.leases.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    plugin.cache_clear()
    with pytest.raises(SettingsError) as error:
        open_store(f"{scheme}://h/db")
    assert error.value.hint == f"pip install '{to_install(extra)}'"
