"""The notebooks run as they are; they are stored without outputs."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"


def ran(name: str, folder: Path) -> list[str]:
    """The results of its cells, as text."""
    notebook: Any = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [each for cell in notebook.cells for each in cell.get("outputs", ())]
    return [each["data"]["text/plain"] if "data" in each else each["text"] for each in outputs]


@pytest.mark.parametrize("notebook", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda each: each.stem)
def test_it_is_stored_without_outputs(notebook: Path) -> None:
    read: Any = nbformat.read(notebook, as_version=4)
    nbformat.validate(read)
    code = [cell for cell in read.cells if cell.cell_type == "code"]
    assert [cell for cell in code if cell.outputs or cell.execution_count] == []


@pytest.mark.process
def test_the_first_look_runs(tmp_path: Path) -> None:
    results = ran("first-look", tmp_path)
    assert results[0] == "<Stream of memory>"
    assert "'change 0'" in results[1]
    assert results[-2:] == ["'memory:p0-000000000002:1'", "78"]


@pytest.mark.process
def test_the_one_of_polars_runs(tmp_path: Path) -> None:
    results = ran("polars", tmp_path)
    assert "change 299" in results[3]
    assert "DELETE" in results[-1]


@pytest.mark.spark
def test_the_one_of_spark_runs_and_writes_to_delta_where_it_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    results = ran("spark-delta", tmp_path)
    assert results[0] in ("'delta'", "'parquet'")
    assert results[1].startswith("<Query ")
    assert "500" in results
    assert any("change 496" in each for each in results)
    assert list(tmp_path.iterdir())


@pytest.mark.thorough  # tests/docs/test_how_to_lake_by_spark.py plays the page of the same steps
@pytest.mark.spark
def test_the_one_of_a_lake_appends_and_merges_each_change_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    results = ran("lake-by-spark", tmp_path)
    assert results[:3] == ["500", "800", "800"]
    assert "change 496" in results[3]
    assert "change 799" in results[4]
    assert results[5] == "0"
