"""What users call, imported when it is used: `import penstock` itself imports nothing.

docs/reference/python.md describes each name. What is not here is not for users.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.config import Pipeline, load_pipeline, parse_pipeline
    from penstock.consumer.mirror.replica import Replica
    from penstock.consumer.mirror.tailing import ReplicaStatus
    from penstock.consumer.tail.reader import Message, TailReader
    from penstock.feeds import Feed, FeedPlugin, Following, Gap, Lineage, Listing
    from penstock.leases import Lease
    from penstock.leases.balance import Taking, balance
    from penstock.model.change import Operation, schema
    from penstock.model.errors import (
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
    from penstock.model.finding import Finding
    from penstock.model.page import Decoder, Page
    from penstock.model.position import START, Bookmark, PartitionId, Place
    from penstock.model.settings import Secret, Settings
    from penstock.model.version import __version__
    from penstock.process.notebook import watch
    from penstock.processor.observer import Changes, CloseReason, Observer, PartitionContext
    from penstock.processor.processor import Processor
    from penstock.sinks import Receipt, Sink, SinkPlugin
    from penstock.sinks.tables.sink import table_sink
    from penstock.spark.datasource import PenstockDataSource, register
    from penstock.stream import ChangeRecord, Stream, stream
    from penstock.tables.database import TableDatabase

_PLACES = {
    "penstock.model.change": ("Operation", "schema"),
    "penstock.config": ("Pipeline", "load_pipeline", "parse_pipeline"),
    "penstock.model.errors": (
        "InvalidPosition", "InvalidStream", "LeaseLost", "Malformed", "PenstockError",
        "PositionLost", "RecordsExpired", "Rejected", "SettingsError", "ShardIteratorExpired",
        "Unavailable",
    ),
    "penstock.feeds": ("Feed", "FeedPlugin", "Following", "Gap", "Lineage", "Listing"),
    "penstock.model.finding": ("Finding",),
    "penstock.leases": ("Lease",),
    "penstock.leases.balance": ("Taking", "balance"),
    "penstock.model.page": ("Decoder", "Page"),
    "penstock.model.position": ("START", "Bookmark", "PartitionId", "Place"),
    "penstock.process.notebook": ("watch",),
    "penstock.processor.observer": ("Changes", "CloseReason", "Observer", "PartitionContext"),
    "penstock.processor.processor": ("Processor",),
    "penstock.consumer.mirror.replica": ("Replica",),
    "penstock.consumer.mirror.tailing": ("ReplicaStatus",),
    "penstock.tables.database": ("TableDatabase",),
    "penstock.model.settings": ("Secret", "Settings"),
    "penstock.sinks": ("Receipt", "Sink", "SinkPlugin"),
    "penstock.sinks.tables.sink": ("table_sink",),
    "penstock.spark.datasource": ("PenstockDataSource", "register"),
    "penstock.stream": ("ChangeRecord", "Stream", "stream"),
    "penstock.consumer.tail.reader": ("Message", "TailReader"),
    "penstock.model.version": ("__version__",),
}  # fmt: skip
_MODULES = {name: module for module, names in _PLACES.items() for name in names}

__all__ = [
    "START",
    "Bookmark",
    "ChangeRecord",
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
    "TableDatabase",
    "TailReader",
    "Taking",
    "Unavailable",
    "__version__",
    "balance",
    "load_pipeline",
    "parse_pipeline",
    "register",
    "schema",
    "stream",
    "table_sink",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    try:
        module = import_module(_MODULES[name])
    except ModuleNotFoundError:
        from penstock.process.plugins import driver

        module = driver(_MODULES[name])  # raises, and names the extra
    found = getattr(module, name)
    globals()[name] = found  # the next use does not come here
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
