"""What an installation without an extra can do, and what it reports of the rest."""

import subprocess
import sys

import pytest

from penstock.process.plugins import to_install

_HIDDEN = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "MODULE":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
"""
_FILE = """
backends:
  - {name: shop, type: mongodb, connection: "mongodb://localhost/", database: shop}
sink: {type: jetstream, url: "nats://localhost:4222", subject: "cdc.{collection}"}
"""
_PIPELINE = f"""
from penstock import parse_pipeline
pipeline = parse_pipeline({_FILE!r}).renewed()
print(pipeline.has_live_map, pipeline.known_backends[0].name, pipeline.backends[0].databases())
pipeline.backends[0].feed(), pipeline.sink.sink()
"""


def _ran(code: str, without: str = "psycopg") -> str:
    code = _HIDDEN.replace("MODULE", without) + code
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    return (found.stdout + found.stderr).strip()


def test_a_pipeline_without_postgresql_needs_no_psycopg() -> None:
    assert _ran(_PIPELINE) == "False shop []"


@pytest.mark.parametrize("module", ["cli", "config", "service.live_map", "snapshots.loading"])
def test_what_any_pipeline_imports_needs_none(module: str) -> None:
    assert _ran(f"import penstock.{module}") == ""


_PIP = f"pip install '{to_install('postgres')}'"
_TEXT = f"needs the module 'psycopg', which is not installed ({_PIP}) [process.module-missing]"


def test_a_sqlite_file_as_a_sink_names_the_extra() -> None:
    found = _ran("from penstock.process.plugins import plugin; plugin('sinks', 'sqlite')")
    assert found.endswith(f"'sqlite' {_TEXT}")


def test_a_mirror_names_the_extra_whatever_its_target_is() -> None:
    assert _ran("import penstock; penstock.Replica").endswith(f"this {_TEXT}")
    arguments = ["mirror", "nats://127.0.0.1:1", "--tables", "a", "--to", "sqlite:///x.db"]
    found = _ran(f"from penstock.cli import main; main({arguments})")
    assert f"hint:  {_PIP}" in found


_LAKE = """
backends:
  - {name: shop, type: postgres, connection: "postgresql://localhost/", slot: lake}
sink: {type: delta, location: "/lake/{table}", map: [{backend: shop, tables: {orders: {}}}]}
"""


def test_a_lake_names_the_extra_and_the_line_of_the_file() -> None:
    code = f"from penstock import parse_pipeline; parse_pipeline({_LAKE!r})"
    needs = "4: sink.type: 'delta' needs the module 'deltalake', which is not installed"
    pip = f"pip install '{to_install('delta')}'"
    assert f"{needs} ({pip}) [process.module-missing]" in _ran(code, without="deltalake")


def test_a_pipeline_without_a_lake_needs_no_deltalake() -> None:
    assert _ran(_PIPELINE, without="deltalake") == "False shop []"
