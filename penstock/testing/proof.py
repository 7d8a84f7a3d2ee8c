"""Tries the claims of a service one after the other, in its time, and removes what was made,
however it ends: by an error, Ctrl-C or SIGTERM, or when the time is over."""

import platform
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from penstock.model.errors import PenstockError, SettingsError
from penstock.model.problems import blot
from penstock.testing.claims import Broken, NotTried, Trial
from penstock.testing.services import TriedService

_REMOVAL = 60.0  # seconds of removing what was made
TIME = 600.0 - _REMOVAL  # seconds of all claims
_SHOWN = 1000  # characters: a service may answer with a page of HTML

Result = Literal["holds", "differs", "not tried"]


class _TimeIsOver(BaseException):
    """Passes through what handles errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one claim. `detail`: what differs, or why it was not tried."""

    claim: str
    result: Result
    seconds: float = 0.0
    detail: str = ""


@dataclass(slots=True, kw_only=True)
class Proof:
    """What a user may send back: no password or data of theirs is in it."""

    service: str
    version: str = ""
    penstock: str
    python: str = field(default_factory=platform.python_version)
    system: str = field(default_factory=platform.platform)
    drivers: dict[str, str]
    at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    seconds: float = 0.0
    claims: list[Outcome] = field(default_factory=list)
    left: str = ""
    """What could not be removed, and why."""

    @property
    def holds(self) -> bool:
        """Whether nothing differs, something was tried, and nothing is left."""
        results = {each.result for each in self.claims}
        return "holds" in results and "differs" not in results and not self.left

    def to_json(self) -> dict[str, Any]:
        return {"holds": self.holds, **asdict(self)}


def prove(
    service: TriedService, show: Callable[[Outcome], object], *, seconds: float = TIME
) -> Proof:
    """Tries all. `show` is called with each outcome. Raises PenstockError where
    nothing can be made, and KeyboardInterrupt; after all was removed."""
    proof = Proof(
        service=service.kind,
        penstock=_installed("penstock-cdc"),
        drivers={name: _installed(name) for name in service.drivers},
    )
    began = time.monotonic()
    try:
        with _interrupted_by(signal.SIGTERM, KeyboardInterrupt):
            _try_all(service, proof, show, seconds)
    finally:
        proof.left = blot(_remove(service), service.secrets)
        proof.seconds = round(time.monotonic() - began, 1)
        if proof.left:
            show(Outcome(claim="all is removed", result="differs", detail=proof.left))
    return proof


def _try_all(
    service: TriedService, proof: Proof, show: Callable[[Outcome], object], seconds: float
) -> None:
    def told(outcome: Outcome) -> None:
        proof.claims.append(outcome)
        show(outcome)

    try:
        with _ending_after(seconds):
            _make(service)
            proof.version = blot(service.version(), service.secrets)
            with closing(service.trials()) as trials:
                while (trial := _next(trials, is_first=not proof.claims)) is not None:
                    told(_outcome(trial, service.secrets))
    except _TimeIsOver:
        text = f"the time of {seconds:.0f} s is over"
        told(Outcome(claim="all claims are tried", result="not tried", detail=text))


def _make(service: TriedService) -> None:
    try:
        service.make()
    except PenstockError:
        raise
    except Exception as error:  # a driver's
        text = blot(f"{type(error).__name__}: {error}".strip(), service.secrets)
        raise SettingsError(
            f"nothing can be made at the {service.kind}: {text}", "cli.prove-refused",
            hint=f"it needs {service.needs}",
        ) from None  # fmt: skip


def _next(trials: Iterator[Trial], *, is_first: bool) -> Trial | None:
    """The next one; where it cannot be made ready, one that says so. Raises SettingsError where
    nothing can be tried at all."""
    try:
        return next(trials, None)
    except Exception as error:
        if is_first and isinstance(error, SettingsError):
            raise
        return Trial(partial(_raise, error), the_next_claims_can_be_made_ready)


def the_next_claims_can_be_made_ready() -> None:
    """What is tried where they cannot."""


def _raise(error: Exception) -> None:
    raise error


def _outcome(trial: Trial, secrets: Sequence[str]) -> Outcome:
    result: Result = "holds"
    began, detail = time.monotonic(), ""
    try:
        trial.call()
    except NotTried as reason:
        result, detail = "not tried", str(reason)
    except Broken as error:
        result, detail = "differs", str(error)
    except Exception as error:  # of penstock, or of the driver
        result, detail = "differs", f"{type(error).__name__}: {error}"
    text = blot(" ".join(detail.split()), secrets)
    return Outcome(
        claim=trial.words, result=result, detail=text[:_SHOWN],
        seconds=round(time.monotonic() - began, 1),
    )  # fmt: skip


def _remove(service: TriedService) -> str:
    """Why something is left; "" where nothing is. A second Ctrl-C does not end it."""
    try:
        with (
            _interrupted_by(signal.SIGINT, None),
            _interrupted_by(signal.SIGTERM, None),
            _ending_after(_REMOVAL),
        ):
            service.remove()
    except (_TimeIsOver, Exception) as error:
        return f"{service.makes}: remove what is there by hand: {type(error).__name__}: {error}"
    return ""


@contextmanager
def _ending_after(seconds: float) -> Iterator[None]:
    """Raises _TimeIsOver where it takes longer; in the main thread."""
    with _interrupted_by(signal.SIGALRM, _TimeIsOver):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def _interrupted_by(number: int, kind: type[BaseException] | None) -> Iterator[None]:
    """The signal raises this meanwhile, once; nothing for None."""

    def interrupt(*_: object) -> None:
        if kind is not None:
            raise kind

    before = signal.signal(number, interrupt)
    try:
        yield
    finally:
        signal.signal(number, before)


def _installed(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
