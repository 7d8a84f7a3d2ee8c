"""A pipeline as snapshots know it, whose answers a test chooses."""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.model.position import Bookmarks
from penstock.snapshots.statements import RowTransform


@dataclass
class StatedPipeline:
    """Is a `PipelineState`. `known` gives the bookmarks, `gap` the losses, of any backend."""

    name: str = ""
    statements: RowTransform | None = None
    is_ours: bool = True
    known: Callable[[], Bookmarks] = dict
    gap: Callable[[], str] = str

    def bookmarks(self, backend: str) -> Bookmarks:
        return self.known()

    def losses(self, backend: str) -> str:
        return self.gap()
