"""The demo's sources: one folder each, with an embedded server, a shop that writes to it, and what
the shop's tables hold in the end, read with the source's own client. The contract is here.

A source is a module of this package, with `DEMO`: a `DemoSource`'s class.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from importlib.metadata import metadata
from pkgutil import iter_modules
from typing import Any, Protocol, Self

from penstock.demo.ledger import Ledger
from penstock.demo.verdict import TableRows
from penstock.demo.workload import Writer
from penstock.errors import SettingsError


class DemoSource(Protocol):
    """A database with a shop; the server runs inside its context."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    @property
    def title(self) -> str:
        """What it is, for the screen."""
        ...

    @property
    def notice(self) -> str:
        """What the user must know before it starts; "" for a real server."""
        ...

    @property
    def keys(self) -> Mapping[str, tuple[str, ...]]:
        """The tables, and their key columns in order."""
        ...

    @property
    def backend(self) -> Mapping[str, Any]:
        """The backend of the pipeline file, other than its name."""
        ...

    @property
    def subject(self) -> str:
        """`sink.subject` of the pipeline file."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of the pipeline's environment, which `backend` may refer to."""
        ...

    def writer(self, ledger: Ledger, rate: float) -> Callable[[], AbstractContextManager[Writer]]:
        """The shop; it writes about `rate` changes a second."""
        ...

    def lag(self) -> str:
        """How far behind the source's own view of the pipeline is; "" where it has none."""
        ...

    def tables(self) -> Mapping[str, TableRows]:
        """What the tables hold now."""
        ...

    def hints(self) -> Sequence[str]:
        """How to connect by hand, a line each."""
        ...


SOURCES = tuple(sorted(module.name for module in iter_modules(__path__)))


def source(kind: str) -> DemoSource:
    """The demo's source of a kind, to be entered; raises SettingsError naming the extra where its
    packages are missing."""
    try:
        found: Callable[[], DemoSource] = import_module(f"{__name__}.{kind}").DEMO
    except ImportError as error:
        # What most demos need is in `demo`; `demo-KIND` has that and more.
        extras = metadata("penstock").get_all("Provides-Extra") or ()
        extra = f"demo-{kind}" if f"demo-{kind}" in extras else "demo"
        raise SettingsError(
            f"the demo of {kind} needs the package {error.name}",
            hint=f"pip install 'penstock[{extra}]'",
        ) from error
    return found()
