"""Pipelines as a file makes them."""

from pathlib import Path
from typing import Any

import orjson

from penstock.config import Pipeline, parse_pipeline


def pipeline_of(
    *backends: dict[str, Any], sink: dict[str, Any], folder: Path | None = None, name: str = "shop"
) -> Pipeline:
    """With positions in the folder; without one, in memory."""
    where = {"positions": "memory:"} if folder is None else {"state": str(folder)}
    document = {"name": name, "backends": backends, "sink": sink, **where}
    return parse_pipeline(orjson.dumps(document).decode(), environment={})
