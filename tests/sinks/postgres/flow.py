"""A source into the tables of a target, rows and changes, by all that `penstock run` uses but Spark
and its processes."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from penstock.config.load import build_pipeline
from penstock.model.errors import Unavailable
from penstock.model.finding import Finding
from penstock.model.position import Bookmarks
from penstock.snapshots.loading import TableLoader
from tests.progress import Noted
from tests.servers import Database
from tests.waiting import until


class Flow(Noted):
    """A pipeline with the backend `shop`, while its block runs; its reports are its items. Is an
    `OwnedState`. A change that is refused ends it: leaving the block raises that."""

    name = "flow"
    statements = None
    is_ours = True

    def __init__(
        self,
        source: Database | Mapping[str, Database],
        target: Database | Path,
        tables: Mapping[str, Any],
        *,
        initial: bool = True,
        sink: Mapping[str, Any] | None = None,
        snapshot: Mapping[str, Any] | None = None,
        rows: int = 20_000,
        follows: Sequence[str] = (),
        **backend: Any,
    ) -> None:
        super().__init__()
        reads: dict[str, Any] = {}
        if isinstance(source, Database):
            self.slot = backend.get("slot", f"flow_{source.name}")
            reads = {"connection": source.url, "slot": self.slot}
        elif source:  # by their sids
            of = [{"sid": sid, "connection": each.url} for sid, each in source.items()]
            reads = {"sources": of}
        if follows:
            reads["tables"] = [*follows]
        where = {"type": "sqlite", "file": str(target)}
        if isinstance(target, Database):
            where = {"type": "postgres", "connection": target.url}
        elif not target.suffix:  # a folder
            where = {"type": "delta", "location": f"{target}/{{schema}}/{{table}}"}
        data = {
            "name": self.name,
            "backends": [{"name": "shop", "type": "postgres", **reads, **backend}],
            "sink": {
                **where, **(sink or {}), "commit": {"wait": "20ms", "rows": rows},
                "map": [{"backend": "shop", "tables": tables}],
            },
            "snapshot": {"initial": initial, **(snapshot or {})},
        }  # fmt: skip
        pipeline = build_pipeline(data, name="flow", secrets=())
        self._backend = pipeline.backends[0]
        update = {"initial": initial, "on_error": backend.get("on_error", "stop")}
        settings = pipeline.sink.settings.model_copy(update=update)
        self._sink: Any = pipeline.sink.model_copy(update={"settings": settings}).sink()
        self._feed: Any = self._backend.feed()
        self._feed.number_columns()
        self._bookmarks: Bookmarks = {}
        self._loader = TableLoader(pipeline, self)
        self._is_over, self._writes = threading.Event(), 0
        self._following: Any = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> Self:
        self._sink.prepare()
        self._bookmarks = self._feed.begin()
        self._thread.start()
        self._loader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loader.close()
        self._thread.join(60)
        if self._failure is not None:
            raise self._failure

    def loaded(self) -> None:
        """Waits until all tables are live."""

        def are_live() -> bool:
            self.check()
            return {state for state, _ in self.states()} == {"live"}

        until(are_live, 120, problem=self.states)

    def states(self) -> list[tuple[str, str]]:
        """Of each table: its state, and why it waits."""
        return [(each["state"], each["error"]) for each in self.tables()]

    def tables(self) -> Sequence[Mapping[str, Any]]:
        """Each table, as the status page shows it."""
        return [*self._sink.tables()]

    def reload(self, table: str) -> None:
        self._sink.reload(table, None)

    def resume(self, table: str) -> None:
        self._sink.resume_table(None, f"public.{table}")

    def letters(self) -> Sequence[Mapping[str, Any]]:
        return [*self._sink.dead_letters()]

    def findings(self, *, is_whole: bool = False) -> Sequence[Finding]:
        """What `penstock check` finds about the tables, or all of the sink."""
        own = self._sink.check() if is_whole else ()
        return [*own, *self._sink.check_tables("shop", self._feed.schemas_to_be())]

    def check(self) -> None:
        """Raises what ended it."""
        if self._failure is not None:
            raise self._failure

    def _write(self) -> None:
        """Again, as Spark does, where the source is away, or the write has to be done anew."""
        while True:
            self._writes += 1
            try:
                self._sink.write(self._changes(), self)
            except Unavailable:
                time.sleep(0.1)
            except BaseException as error:
                self._failure = error
                return
            else:
                return

    def _changes(self) -> Iterator[pa.RecordBatch]:
        ((partition, bookmark),) = self._bookmarks.items()
        following, decoder = self._feed.follow(partition, bookmark), self._feed.decoder("text")
        self._following, write = following, self._writes
        try:
            while not self._is_over.is_set() and write == self._writes:
                for page in following.read(0.1):
                    yield from decoder.decode(page)
        finally:
            following.close()

    def bookmarks(self, backend: str) -> Bookmarks:
        """See `PipelineState`: how far all is stored."""
        found = {}
        for name, each in self._bookmarks.items():
            place, following = self.position.get(name, each.place), self._following
            found[name] = each if following is None else following.bookmark(place) or each
        return found

    def losses(self, backend: str) -> str:
        """See `PipelineState`."""
        return ""

    def gaps(self, backend: str) -> Any:
        """See `OwnedState`; asked only with `on_gap: resnapshot`."""
        raise NotImplementedError

    def end(self) -> None:
        """See `OwnedState`."""
        self.is_ours = False
        self._is_over.set()

    def wait(self, seconds: float) -> None:
        """See `OwnedState`."""
        self._is_over.wait(min(seconds, 0.05))
