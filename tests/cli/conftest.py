"""A pipeline file that any command takes."""

from pathlib import Path

import pytest


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Of the pipeline `shop`, from memory to memory, with its state in a folder of its own."""
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        f"name: shop\nstate: {tmp_path}\nbackends: [{{type: memory}}]\nsink: {{type: memory}}\n"
    )
    return path
