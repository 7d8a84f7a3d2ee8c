"""The demo's sources: one module each, with an embedded server, a shop that writes to it, and what
the shop's tables hold in the end, read with the source's own client. The contract is here.

A source is a module of this package, with `DEMO`, a class.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import metadata
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Any, Self

from penstock.demo.servers import EmbeddedServer
from penstock.demo.verdict import TableRows
from penstock.demo.workload import Writer
from penstock.model.errors import SettingsError
from penstock.process.closing import Closes
from penstock.process.plugins import to_install


class DemoSource(Closes):
    """A database with a shop; the server runs inside its context.

    `title` is for the screen. `notice` is what the user must know before it starts, "" for a real
    server. `keys` are the tables and their key columns in order. `backend` is the pipeline file's,
    other than its name, and `subject` its `sink.subject`. `mirrored` are tables with rows that were
    there before, and others, of which a mirror is made; none where there are no snapshots.
    """

    title: str
    notice = ""
    keys: Mapping[str, tuple[str, ...]]
    mirrored: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    backend: Mapping[str, Any]
    subject = "cdc.{collection}.{operation}"
    _server: EmbeddedServer

    def __enter__(self) -> Self:
        self._server.__enter__()
        try:
            self.set_up()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Ends the server and removes its files."""
        self._server.close()

    def set_up(self) -> None:
        """Makes the tables, where they are not made by writing."""

    @property
    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """Variables of the pipeline's environment, which `backend` may refer to."""

    @abstractmethod
    def writer(self, rate: float) -> Writer:
        """The shop; it writes about `rate` changes a second."""

    @abstractmethod
    def tables(self) -> Mapping[str, TableRows]:
        """What the tables hold now."""

    @abstractmethod
    def hints(self) -> Sequence[str]:
        """How to connect by hand, a line each."""


SOURCES = tuple(sorted(module.name for module in iter_modules(__path__)))


def source(kind: str) -> DemoSource:
    """To be entered; raises SettingsError naming the extra where its packages are missing."""
    try:
        found: type[DemoSource] = import_module(f"{__name__}.{kind}").DEMO
    except ImportError as error:
        # What most demos need is in `demo`; `demo-KIND` has that and more.
        extras = metadata("penstock-cdc").get_all("Provides-Extra") or ()
        extra = f"demo-{kind}" if f"demo-{kind}" in extras else "demo"
        raise SettingsError(
            f"the demo of {kind} needs the package {error.name}",
            "demo.package-missing",
            hint=f"pip install '{to_install(extra)}'",
        ) from error
    return found()


def plain(value: Any, forms: Mapping[type, Callable[[Any], Any]]) -> Any:
    """A value as the message format writes it; `forms`: of the types of a source's client."""
    match value:
        case dict():
            return {name: plain(each, forms) for name, each in value.items()}
        case list():
            return [plain(each, forms) for each in value]
        case set():
            return [plain(each, forms) for each in sorted(value)]
        case _:
            form = forms.get(type(value))
            return value if form is None else form(value)
