"""Pipelines as a file makes them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson

from penstock.config import Pipeline, parse_pipeline
from penstock.ops.board import Board
from penstock.service.owned_pipeline import OwnedPipeline


def pipeline_of(
    *backends: dict[str, Any], sink: dict[str, Any], folder: Path | None = None, name: str = "shop"
) -> Pipeline:
    """With positions in the folder; without one, in memory."""
    where = {"positions": "memory:"} if folder is None else {"state": str(folder)}
    document = {"name": name, "backends": backends, "sink": sink, **where}
    return parse_pipeline(orjson.dumps(document).decode(), environment={})


def owned(pipeline: Pipeline) -> OwnedPipeline:
    """Ours until its `end`."""
    standby: Any = SimpleNamespace(is_ours=True)
    return OwnedPipeline(pipeline, "me", standby, Board("/nowhere"))
