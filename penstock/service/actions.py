"""What operators may do to a pipeline: each action is a class whose fields are its arguments, and
the ops server and the command line run the same.

Some take effect in the process that runs the pipeline (`live`); the others through a store or a
sink that all processes reach.
"""

import re
import secrets
import socket
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

import structlog
from pydantic import Field, ValidationError

from penstock.config import Backend, Pipeline
from penstock.leases import open_store
from penstock.leases.gaps import Gaps
from penstock.model.errors import Malformed, PenstockError, Rejected, SettingsError
from penstock.model.finding import Finding
from penstock.model.problems import dotted, problems_of
from penstock.model.settings import Duration, Settings
from penstock.process.closing import Closes
from penstock.service.pauses import Pauses
from penstock.sinks import KeepsLetters
from penstock.sinks.loading import LoadsTables
from penstock.snapshots.asking import cancel_snapshot, init_stream, request_snapshot
from penstock.wire.hash_partitions import hashing

_RECENT = 100  # actions that are remembered
_TOGETHER = 4  # that run at a time

log = structlog.get_logger("penstock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operated:
    """What an action is done to, and by whom. `findings`: what `penstock check` looks at. `restart`
    has backends begin anew, and `stop` ends the service; None in another process."""

    pipeline: Pipeline
    by: str
    findings: Callable[[Pipeline], Iterator[Finding]] | None = None
    restart: Callable[[Sequence[str]], None] | None = None
    stop: Callable[[], None] | None = None

    @classmethod
    def by_command(cls, pipeline: Pipeline) -> "Operated":
        return cls(pipeline=pipeline, by=f"the command line of {socket.gethostname()}")

    def backends(self, name: str | None) -> list[str]:
        """The backend of this name, or all. Raises SettingsError."""
        known = [each.name for each in self.pipeline.backends]
        if name is not None and name not in known:
            raise SettingsError(
                f"the pipeline has no backend {name!r}",
                "service.no-backend",
                hint=f"it has: {', '.join(known)}",
            )
        return known if name is None else [name]

    @property
    def letters(self) -> KeepsLetters:
        """The sink; raises SettingsError if it sets nothing aside."""
        sink = self.pipeline.sink.sink()
        if not isinstance(sink, KeepsLetters):
            raise SettingsError(
                f"the sink {self.pipeline.sink.type} keeps no dead letters and suspends no tables",
                "service",
                hint="they are in the stream itself there, with the operation ERROR",
            )
        return sink


class Action(Settings):
    """One thing to do. `run` returns what came of it, as plain JSON; it raises PenstockError.
    `is_dangerous`: it is worth a question. The text of a class is what operators read of it."""

    is_dangerous: ClassVar[bool] = False

    @classmethod
    def title(cls) -> str:
        """Its name in URLs and on the command line."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__.removesuffix("Action")).lower()

    @classmethod
    def what(cls) -> str:
        text = str(cls.__doc__).removesuffix(".")
        return text[0].lower() + text[1:]

    @classmethod
    def obstacle(cls, on: Operated) -> str:
        """Why no action of this kind can be done now; "" if one can."""
        return ""

    def refusal(self, on: Operated) -> str:
        """Why this one cannot be done to the pipeline as it is now; "" if it can."""
        return ""

    @abstractmethod
    def run(self, on: Operated) -> Mapping[str, Any]:
        """Does it."""


class OfBackend(Action):
    """Of one backend, or of all."""

    backend: str | None = None


class PauseAction(OfBackend):
    """Take no more changes: what is in flight is stored, connections are kept."""

    is_dangerous: ClassVar[bool] = True
    seconds: Duration | None = Field(default=None, alias="for", gt=0)

    def run(self, on: Operated) -> Mapping[str, Any]:
        names = on.backends(self.backend)
        with Pauses(on.pipeline) as pauses:
            pauses.pause(names, on.by, self.seconds)
        return {"paused": names}


class ResumeAction(OfBackend):
    """Take changes again."""

    def refusal(self, on: Operated) -> str:
        with Pauses(on.pipeline) as pauses:
            found = pauses.all()
        names = on.backends(self.backend)
        return "" if any(each in found for each in names) else f"{', '.join(names)}: not paused"

    def run(self, on: Operated) -> Mapping[str, Any]:
        with Pauses(on.pipeline) as pauses:
            return {"resumed": pauses.resume(on.backends(self.backend))}


class RetryAction(OfBackend):
    """Begin anew now: a backend that stands still is tried now and then."""

    @classmethod
    def obstacle(cls, on: Operated) -> str:
        return "" if on.restart is not None else "the pipeline does not run here"

    def run(self, on: Operated) -> Mapping[str, Any]:
        assert on.restart is not None
        names = on.backends(self.backend)
        on.restart(names)
        return {"restarted": names}


class SnapshotAction(Action):
    """Take a table's rows; a sink of tables loads it anew."""

    table: str
    backend: str | None = None
    sid: str | None = None
    reload: bool = True

    def run(self, on: Operated) -> Mapping[str, Any]:
        sink: object = on.pipeline.sink.sink()
        if isinstance(sink, LoadsTables):
            return {"reloaded": list(sink.reload(self.table, self.sid, self.backend))}
        with init_stream(on.pipeline) as stream:
            wanted = {"reload": True} if self.reload else {}
            name = f"{self.backend}.{self.table}" if self.backend else self.table
            return {"snapshot": request_snapshot(stream, on.pipeline, name, wanted)}


class CancelSnapshotAction(Action):
    """End a snapshot; its chunks go."""

    is_dangerous: ClassVar[bool] = True
    id: str

    def run(self, on: Operated) -> Mapping[str, Any]:
        with init_stream(on.pipeline) as stream:
            cancel_snapshot(stream, on.pipeline, self.id)
        return {"cancelled": self.id}


class SuspendTableAction(Action):
    """Publish no more changes of a table: they are counted, and missing."""

    is_dangerous: ClassVar[bool] = True
    table: str
    backend: str | None = None

    def run(self, on: Operated) -> Mapping[str, Any]:
        names = on.backends(self.backend)
        if len(names) > 1:
            raise SettingsError(
                "the pipeline has several backends",
                "service",
                hint=f"name one of {', '.join(names)}",
            )
        return on.letters.suspend_table(names[0], self.table)


class ResumeTableAction(Action):
    """Follow a suspended table again; with `snapshot` its rows come anew."""

    table: str
    backend: str | None = None
    snapshot: bool = False

    def run(self, on: Operated) -> Mapping[str, Any]:
        found = dict(on.letters.resume_table(self.backend, self.table))
        if self.snapshot:
            found |= SnapshotAction(table=self.table, backend=self.backend).run(on)
        return found


class ReplayAction(Action):
    """Store dead letters after all: one by its id, or all."""

    id: str | None = None
    table: str | None = None
    reason: str | None = None
    force: bool = False

    def run(self, on: Operated) -> Mapping[str, Any]:
        chosen = [self.id] if self.id is not None else [
            str(each["id"]) for each in on.letters.dead_letters()
            if self.table in (None, each["table"]) and self.reason in (None, each["reason"])
        ]  # fmt: skip
        failed = {}
        for each in chosen:
            try:
                replay(on, each, force=self.force)
            except (Malformed, Rejected) as error:
                failed[each] = str(error)
        if failed:
            first = min(failed)
            raise Rejected(
                f"{len(failed)} of {len(chosen)} letters stay, first {first}: {failed[first]}",
                "service",
                hint="mend the cause, and replay them again",
            )
        return {"replayed": chosen}


class MendAction(Action):
    """Say that a partition's tables were loaded anew after a loss."""

    is_dangerous: ClassVar[bool] = True
    backend: str
    partition: str

    def run(self, on: Operated) -> Mapping[str, Any]:
        mend(on.pipeline, f"{self.backend}/{self.partition}")
        return {"mended": f"{self.backend}/{self.partition}"}


class CheckAction(Action):
    """Look at everything that could keep the pipeline from running."""

    def run(self, on: Operated) -> Mapping[str, Any]:
        found = on.findings(on.pipeline) if on.findings is not None else ()
        return {"findings": [asdict(each) for each in found]}


class ShutdownAction(Action):
    """Stop in order: what is in flight is stored and acknowledged."""

    is_dangerous: ClassVar[bool] = True

    @classmethod
    def obstacle(cls, on: Operated) -> str:
        return "" if on.stop is not None else "the pipeline does not run here"

    def run(self, on: Operated) -> Mapping[str, Any]:
        assert on.stop is not None
        on.stop()
        return {}


ACTIONS: Mapping[str, type[Action]] = {
    each.title(): each
    for each in (
        PauseAction, ResumeAction, RetryAction, SnapshotAction, CancelSnapshotAction,
        SuspendTableAction, ResumeTableAction, ReplayAction, MendAction, CheckAction,
        ShutdownAction,
    )
}  # fmt: skip


def replay(on: Operated, id: str, *, force: bool = False) -> Mapping[str, Any]:
    """Stores one dead letter's change after all. Raises Malformed, Rejected."""
    letter = on.letters.dead_letter(id)
    if on.pipeline.transform and letter["kind"] == "source":
        raise Rejected(
            "the change was not decoded, and would be published around transform",
            "service.letter-not-decoded",
            hint="repair the row at the source: its next change goes through the statements",
        )
    backend = _backend(on, str(letter["backend"]))
    decoder = backend.feed().decoder(on.pipeline.sink.images, "stop")
    decode = hashing(decoder, on.pipeline.hash_partitions(backend)).decode
    return on.letters.replay(id, decode, force=force)


def _backend(on: Operated, name: str) -> Backend:
    (found,) = on.backends(name)
    return next(each for each in on.pipeline.backends if each.name == found)


def mend(pipeline: Any, name: str) -> None:
    """Marks the gaps of BACKEND/PARTITION as mended. Raises SettingsError."""
    with closing(open_store(pipeline.positions)) as store:
        gaps = Gaps(store, pipeline.name)
        known = gaps.rows()
        if name not in known:
            listed = ", ".join(known) or "none"
            raise SettingsError(f"{name} has no gaps", "service", hint=f"those that have: {listed}")
        gaps.clear(name)


@dataclass(slots=True, kw_only=True)
class Done:
    """An action that was asked for; times are ISO 8601."""

    id: str
    action: str
    arguments: Mapping[str, Any]
    by: str
    at: str
    state: Literal["running", "done", "failed"] = "running"
    result: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    hint: str = ""


class Actions(Closes):
    """Runs actions in threads, and remembers the last ones."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_TOGETHER, "action")
        self._recent: deque[Done] = deque(maxlen=_RECENT)

    def close(self) -> None:
        """Waits for the actions that run."""
        self._pool.shutdown(cancel_futures=True)

    @property
    def recent(self) -> list[dict[str, Any]]:
        """The last ones, the newest first."""
        return [asdict(each) for each in reversed(self._recent.copy())]

    def begin(self, action: Action, on: Operated) -> Done:
        """Has it run soon."""
        done = Done(
            id=secrets.token_hex(8), action=action.title(), by=on.by,
            arguments=action.model_dump(by_alias=True, exclude_defaults=True),
            at=datetime.now(UTC).isoformat(timespec="seconds"),
        )  # fmt: skip
        self._recent.append(done)
        log.warning("an operator acts", action=done.action, by=on.by, arguments=done.arguments)
        self._pool.submit(self._run, action, on, done)
        return done

    def _run(self, action: Action, on: Operated, done: Done) -> None:
        try:
            done.result = action.run(on)
            done.state = "done"
        except Exception as error:
            found = PenstockError.of(error, done.action)
            done.state, done.error, done.hint = "failed", found.message, found.hint
            log.warning("an action failed", action=done.action, error=str(found))


def read_action(name: str, given: Any) -> Action:
    """The action of this name with these arguments. Raises `BadArgument`."""
    kind = ACTIONS[name]
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        problem = next(problems_of(error, kind))
        raise BadArgument(problem.text, dotted(problem.path)) from None


class BadArgument(SettingsError):
    """Which argument of an action is wrong."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(f"{field}: {message}" if field else message, "service")
        self.field = field
