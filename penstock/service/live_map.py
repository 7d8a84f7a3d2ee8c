"""A map of tables that is edited while the pipeline runs: what changed begins anew, and no other.

The queries of backends that changed end as at a stop: what is in flight is stored and acknowledged
first. The readers of the new ones alter their publications.
"""

from collections.abc import Collection, Iterator
from typing import Any

import structlog

from penstock.config import Backend, Pipeline, secrets_of
from penstock.config.parts import PipelinePart
from penstock.model.errors import PenstockError
from penstock.ops.logs import hide
from penstock.service.supervision import GRACE, Supervision

log = structlog.get_logger("penstock")


class LiveMap(PipelinePart):
    """Looks at the map of a pipeline that is ours, at each `tick`. `parts` follow it, after the
    queries were stopped."""

    def __init__(self, pipeline: Pipeline, supervision: Supervision, parts: PipelinePart) -> None:
        self._pipeline, self._supervision, self._parts = pipeline, supervision, parts
        self._store = pipeline.map_store()
        self._seen: object = None  # the revision
        self._asked = set[str]()
        # What waits for the queries of backends to end, until when (monotonic seconds).
        self._next: tuple[Pipeline, set[str], float] | None = None
        self._said: set[str] = set()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def restart(self, backends: Collection[str]) -> None:
        """Has backends begin anew at the next tick. From any thread."""
        self._asked |= set(backends)

    def tick(self, now: float) -> None:
        """Takes the next step; `now` is monotonic seconds. Raises EngineLost."""
        if self._next is None:
            pipeline = self._read()
            asked, self._asked = self._asked, set()
            changed = asked & {each.name for each in pipeline.backends}
            if pipeline is not self._pipeline:
                changed |= changes(self._pipeline, pipeline)
            if changed:
                self._supervision.end(changed)
                self._next = pipeline, changed, now + GRACE
        if self._next is not None:
            pipeline, changed, until = self._next
            if now >= until or not self._supervision.draining(changed):
                self._follow(pipeline, changed)

    def _read(self) -> Pipeline:
        try:
            if self._store is None or (revision := self._store.revision) == self._seen:
                return self._pipeline
            pipeline = self._pipeline.mapped(self._store.content())
        except PenstockError as error:
            self._say({f"cannot be read now: {error}"})
            return self._pipeline
        self._seen = revision
        hide(secrets_of(pipeline))
        self._say(set(pipeline.map_problems))
        return pipeline

    def _follow(self, pipeline: Pipeline, changed: set[str]) -> None:
        before, self._pipeline, self._next = self._pipeline, pipeline, None
        self._parts.follow(pipeline, changed)
        log.info("the map has changed", backends=", ".join(sorted(changed)))
        for slot, publication in sorted(_slots(before) - _slots(pipeline)):
            log.warning(
                "a source has left the map, and still keeps its log for us",
                slot=slot,
                remedy=f"SELECT pg_drop_replication_slot('{slot}');"
                f' DROP PUBLICATION "{publication}";',
            )

    def _say(self, problems: set[str]) -> None:
        for problem in sorted(problems - self._said):
            log.error("the map of tables", problem=problem)
        self._said = problems


def changes(before: Pipeline, after: Pipeline) -> set[str]:
    """The backends that are not the same, with their tables."""
    one, other = dict(_parts(before)), dict(_parts(after))
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


def _parts(pipeline: Pipeline) -> Iterator[tuple[str, tuple[Backend, list[Any]]]]:
    settings: Any = pipeline.sink.settings
    entries = getattr(settings, "map", ())
    for backend in pipeline.backends:
        yield backend.name, (backend, [each for each in entries if each.backend == backend.name])


def _slots(pipeline: Pipeline) -> set[tuple[str, str]]:
    # (Their type has psycopg, which a pipeline without PostgreSQL may lack.)
    settings: list[Any] = [each.settings for each in pipeline.backends if each.type == "postgres"]
    return {(source.slot, source.publication) for each in settings for source in each.each}
