"""What users call, imported when it is used: `import penstock` itself imports nothing.

docs/reference/python.md describes each name. What is not here is not for users.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.change import Operation, schema
    from penstock.config import Pipeline, load_pipeline, parse_pipeline
    from penstock.errors import (
        InvalidPosition,
        InvalidStream,
        LeaseLost,
        Malformed,
        PenstockError,
        PositionLost,
        RecordsExpired,
        Rejected,
        SettingsError,
        ShardIteratorExpired,
        Unavailable,
    )
    from penstock.feeds import Feed, FeedPlugin, Following, Gap, Lineage, Listing
    from penstock.finding import Finding
    from penstock.leases import Lease
    from penstock.leases.balance import Taking, balance
    from penstock.page import Decoder, Page
    from penstock.position import START, Bookmark, PartitionId, Place
    from penstock.processor.observer import Changes, CloseReason, Observer, PartitionContext
    from penstock.processor.processor import Processor
    from penstock.replica.replica import Replica, ReplicaStatus
    from penstock.replica.targets import Target
    from penstock.settings import Secret, Settings
    from penstock.sinks import Receipt, Sink, SinkPlugin
    from penstock.spark.datasource import PenstockDataSource, register
    from penstock.stream import Stream, stream
    from penstock.tail.message import Message
    from penstock.tail.reader import TailReader
    from penstock.version import __version__

_PLACES = {
    "penstock.change": ("Operation", "schema"),
    "penstock.config": ("Pipeline", "load_pipeline", "parse_pipeline"),
    "penstock.errors": (
        "InvalidPosition", "InvalidStream", "LeaseLost", "Malformed", "PenstockError",
        "PositionLost", "RecordsExpired", "Rejected", "SettingsError", "ShardIteratorExpired",
        "Unavailable",
    ),
    "penstock.feeds": ("Feed", "FeedPlugin", "Following", "Gap", "Lineage", "Listing"),
    "penstock.finding": ("Finding",),
    "penstock.leases": ("Lease",),
    "penstock.leases.balance": ("Taking", "balance"),
    "penstock.page": ("Decoder", "Page"),
    "penstock.position": ("START", "Bookmark", "PartitionId", "Place"),
    "penstock.processor.observer": ("Changes", "CloseReason", "Observer", "PartitionContext"),
    "penstock.processor.processor": ("Processor",),
    "penstock.replica.replica": ("Replica", "ReplicaStatus"),
    "penstock.replica.targets": ("Target",),
    "penstock.settings": ("Secret", "Settings"),
    "penstock.sinks": ("Receipt", "Sink", "SinkPlugin"),
    "penstock.spark.datasource": ("PenstockDataSource", "register"),
    "penstock.stream": ("Stream", "stream"),
    "penstock.tail.message": ("Message",),
    "penstock.tail.reader": ("TailReader",),
    "penstock.version": ("__version__",),
}  # fmt: skip
_MODULES = {name: module for module, names in _PLACES.items() for name in names}

__all__ = [
    "START",
    "Bookmark",
    "Changes",
    "CloseReason",
    "Decoder",
    "Feed",
    "FeedPlugin",
    "Finding",
    "Following",
    "Gap",
    "InvalidPosition",
    "InvalidStream",
    "Lease",
    "LeaseLost",
    "Lineage",
    "Listing",
    "Malformed",
    "Message",
    "Observer",
    "Operation",
    "Page",
    "PartitionContext",
    "PartitionId",
    "PenstockDataSource",
    "PenstockError",
    "Pipeline",
    "Place",
    "PositionLost",
    "Processor",
    "Receipt",
    "RecordsExpired",
    "Rejected",
    "Replica",
    "ReplicaStatus",
    "Secret",
    "Settings",
    "SettingsError",
    "ShardIteratorExpired",
    "Sink",
    "SinkPlugin",
    "Stream",
    "TailReader",
    "Taking",
    "Target",
    "Unavailable",
    "__version__",
    "balance",
    "load_pipeline",
    "parse_pipeline",
    "register",
    "schema",
    "stream",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    found = getattr(import_module(_MODULES[name]), name)
    globals()[name] = found  # the next use does not come here
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
