"""`penstock status` and `penstock top`: how a running pipeline is, by what its ops server says."""

import os
import re
import select
import signal
import sys
import termios
import time
import tty
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self
from urllib.parse import urlsplit

import click
from rich.console import Console, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.segment import Segment, Segments
from rich.text import Text

from penstock.cli.options import OpsClient, json_option, load_deployment, print_json
from penstock.cli.screens import ORDERS, SCREENS, View, overview
from penstock.model.errors import SettingsError, Unavailable
from penstock.model.settings import Secret
from penstock.process.closing import Closes

_DEFAULT = "http://127.0.0.1:9090"
_EVERY = 1.0  # seconds
_SUSPEND = "\x1a"  # Ctrl-Z
_HELP = """\
1 to 5, Tab   the screen: overview, sources, tables, snapshots, letters
s             the next order of its rows
j, k, arrows  a line down, up
Space, b      a page down, up (PgDn, PgUp)
g, G          the first line, the last (Home, End)
?             this, and back
q, Ctrl-C     the end"""

_KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)  # an arrow sends several characters
_MOVES = {"j": 1, "\x1b[B": 1, "\x1bOB": 1, "k": -1, "\x1b[A": -1, "\x1bOA": -1}
_PAGES = {" ": 1, "\x1b[6~": 1, "b": -1, "\x1b[5~": -1}
_LAST = sys.maxsize
_ENDS = dict.fromkeys(("g", "\x1b[H", "\x1bOH", "\x1b[1~"), 0) | dict.fromkeys(
    ("G", "\x1b[F", "\x1bOF", "\x1b[4~"), _LAST
)

_where = click.argument("where", metavar="[FILE | URL]", default=_DEFAULT)
_token = click.option(
    "--token", envvar="PENSTOCK_OPS_TOKEN", help="The server's token; default: the file's."
)


@click.command("status")
@_where
@json_option("The answer of /status.")
@_token
def status(*, where: str, as_json: bool, token: str | None) -> None:
    """Show the status of a running pipeline: by its FILE, or by the URL of its ops server.

    Exits with 0 if the pipeline is healthy, else with 1.
    """
    ops = _ops(where, token)
    found = _asked(ops, "/status")
    if as_json:
        print_json(found)
    else:
        _print(found, _asked(ops, "/history"))
    raise SystemExit(0 if found["health"] == "ok" else 1)


@click.command("top")
@_where
@click.option(
    "--once", is_flag=True, help="Print one frame; exits with 0 if the pipeline is healthy."
)
@json_option("Once, as an object: `status`, and `history` with the curves.")
@_token
def top(*, where: str, once: bool, as_json: bool, token: str | None) -> None:
    """Watch a running pipeline in a terminal, until q or Ctrl-C: by its FILE, or by the URL of its
    ops server.

    \b
    1 to 5, Tab   overview, sources, tables, snapshots, letters
    s             the next order of the rows
    j, k, arrows  a line down, up (Space, b: a page; g, G: first, last)
    ?             the keys

    Without a terminal the command prints one frame.
    """
    ops, console = _ops(where, token), Console()
    if once or as_json or not console.is_terminal:
        found, history = _asked(ops, "/status"), _asked(ops, "/history")
        if as_json:
            print_json({"status": found, "history": history})
        else:
            _print(found, history)
        raise SystemExit(0 if found["health"] == "ok" else 1)
    viewing = Viewing()
    # Ended by a signal, it leaves the terminal as it was. What a handler raises may be lost where
    # Python collects garbage: then the end of the screen is the next look at `is_done`.
    for number, code in ((signal.SIGINT, 0), (signal.SIGTERM, 143)):
        signal.signal(number, partial(viewing.end, code))
    while not _watched(ops, console, viewing):
        os.kill(0, signal.SIGTSTP)  # with the terminal as it was, until `fg`
    raise SystemExit(viewing.code)


@dataclass(slots=True, kw_only=True)
class Viewing:
    """What is looked at, by the keys that were pressed."""

    screen: str = "overview"
    helps: bool = False
    is_done: bool = False
    code: int = 0  # that the command ends with
    first: int = 0  # line of the screen that is at the top
    height: int = 1  # lines that fit
    orders: dict[str, str] = field(default_factory=dict)  # of each screen that has another

    @property
    def order(self) -> str:
        return self.orders.get(self.screen, next(iter(ORDERS[self.screen])))

    def press(self, key: str) -> None:
        """An unknown key changes nothing."""
        names, before = list(SCREENS), self.screen
        if key == "\t":
            self.screen = names[(names.index(self.screen) + 1) % len(names)]
        elif key.isdecimal() and 0 < int(key) <= len(names):
            self.screen = names[int(key) - 1]
        elif key == "s":
            known = list(ORDERS[self.screen])
            self.orders[self.screen] = known[(known.index(self.order) + 1) % len(known)]
        elif key == "q":
            self.is_done = True
        self.first = self._first(key) if self.screen == before else 0
        self.helps = key == "?" and not self.helps

    def end(self, code: int, *_: object) -> NoReturn:
        """A signal came."""
        self.is_done, self.code = True, code
        raise SystemExit(code)

    def _first(self, key: str) -> int:
        """Past the last line: the last page."""
        lines = _MOVES.get(key, 0) + _PAGES.get(key, 0) * max(1, self.height - 1)
        return _ENDS.get(key, max(0, self.first + lines))


class Keys(Closes):
    """What is typed, without Enter and without an echo; nothing where standard input is no
    terminal, which is left as it was."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno() if sys.stdin.isatty() else -1
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        if self._fd >= 0:
            self._before = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd)
            now = termios.tcgetattr(self._fd)
            now[6][termios.VSUSP] = b"\0"  # read as a key: the screen is left before the stop
            termios.tcsetattr(self._fd, termios.TCSADRAIN, now)
        return self

    def close(self) -> None:
        if self._before:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def read(self, seconds: float) -> list[str]:
        """The keys that were pressed within so many seconds, which are waited for only where there
        are none. Raises EOFError."""
        if self._fd < 0:
            time.sleep(seconds)
            return []
        if not select.select([self._fd], [], [], seconds)[0]:
            return []
        if not (typed := os.read(self._fd, 64)):
            raise EOFError
        return _KEY.findall(typed.decode(errors="replace"))


def _watched(ops: OpsClient, console: Console, viewing: Viewing) -> bool:
    """Shows it until its end; False: it is to be suspended."""
    with Keys() as keys, Live(console=console, auto_refresh=False, screen=True) as live:
        while not viewing.is_done:
            live.update(_screen(ops, console, viewing), refresh=True)
            try:
                typed = keys.read(_EVERY)
            except EOFError:
                return True
            for key in typed:
                if key == _SUSPEND:
                    return False
                viewing.press(key)
    return True


def _screen(ops: OpsClient, console: Console, viewing: Viewing) -> RenderableType:
    body: RenderableType = Text(_HELP)
    if not viewing.helps:
        try:
            body = SCREENS[viewing.screen](_view(ops, console, viewing))
        except Unavailable as error:
            body = Text(str(error), style="red")
    lines = console.render_lines(body, pad=False)
    viewing.height = max(1, console.height - 1)
    viewing.first = max(0, min(viewing.first, len(lines) - viewing.height))
    shown = lines[viewing.first : viewing.first + viewing.height]
    place = ""
    if len(shown) < len(lines):
        place = f"{viewing.first + 1}-{viewing.first + len(shown)}/{len(lines)}"
    whole = Layout()
    whole.split_column(
        Layout(Segments([part for line in shown for part in (*line, Segment.line())])),
        Layout(_keys(viewing, place), size=1),
    )
    return whole


def _view(ops: OpsClient, console: Console, viewing: Viewing) -> View:
    every = "?partitions=all" if viewing.screen == "sources" else ""
    status, history = _asked(ops, f"/status{every}"), _asked(ops, "/history")
    letters: Any = ops.asked("/letters") if viewing.screen == "letters" else ()
    if not isinstance(letters, list):
        letters = str(letters["error"]) if letters else ()
    return View(
        status=status, history=history, letters=letters, width=console.width, order=viewing.order,
        most=_LAST,
    )  # fmt: skip


def _keys(viewing: Viewing, place: str) -> Text:
    """The line of keys; the screen that is shown stands out. `place`: which of its lines are."""
    line = Text(no_wrap=True, overflow="ellipsis")
    for number, name in enumerate(SCREENS, 1):
        line.append(f"{number} ", "dim")
        line.append(name, "reverse" if name == viewing.screen and not viewing.helps else "")
        line.append("  ")
    return line.append(f"? help  {place}" if place else "s sort  ? help  q quit", "dim")


def _ops(where: str, token: str | None) -> OpsClient:
    """The ops server of a pipeline file, or at a URL. Raises SettingsError."""
    if "://" not in where:
        ops = load_deployment(Path(where), None).ops
        return OpsClient.of(ops.model_copy(update={"token": Secret(token)}) if token else ops)
    url = urlsplit(where)
    is_tls = url.scheme == "https"
    if url.scheme not in ("http", "https") or not url.hostname:
        raise SettingsError(
            f"{where} is no http:// or https:// URL", "cli", hint=f"such as {_DEFAULT}"
        )
    return OpsClient(
        url.hostname, url.port or (443 if is_tls else 80), path=url.path.rstrip("/"),
        token=token or "", is_tls=is_tls,
    )  # fmt: skip


def _asked(ops: OpsClient, path: str) -> dict[str, Any]:
    if "error" in (found := ops.answer(path)):
        raise SettingsError(str(found["error"]), "cli", hint=str(found.get("info", "")))
    return found


def _print(status: dict[str, Any], history: dict[str, Any]) -> None:
    console = Console()
    console.print(overview(View(status=status, history=history, width=console.width)))
