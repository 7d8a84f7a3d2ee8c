"""What `penstock status` and `penstock top` draw: pure functions of the answers of an ops server, a
width, and the order that was chosen."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from penstock.cli.fitting import Cells, bar, grid, number, rate, seconds, size
from penstock.model.version import DOCS

_COLORS = {"ok": "green", "degraded": "yellow", "standby": "yellow", "unhealthy": "red"}
_TABLES = 20  # that `status` shows
# Characters that a name, that of a table, and a state may be shortened to.
_NAME, _TABLE, _STATE = 12, 32, 10

Row = Mapping[str, Any]
Order = Callable[[Row], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """`status`, `history`: what /status and /history answer; `letters`: what /letters does, or why
    it does not. `order`: the name of one of the screen's; "": its first. `most`: tables that are
    shown."""

    status: Mapping[str, Any]
    history: Mapping[str, Any]
    letters: Sequence[Row] | str = ()
    width: int = 80
    order: str = ""
    most: int = _TABLES

    def series(self, name: str) -> Sequence[float | None]:
        found: Sequence[float | None] = self.history["series"].get(name, ())
        return found


def overview(view: View) -> RenderableType:
    """Health with its reasons, sources, sinks, and the busiest tables."""
    parts = [*_head(view), Text(), _backends(view), *_if(_sinks(view), view.status["sinks"])]
    return Group(*parts, *_if(tables(view), view.status["tables"]))


def sources(view: View) -> RenderableType:
    """Each source, and its partitions."""
    parts: list[RenderableType] = [_backends(view)]
    for each in view.status["backends"]:
        rows = _sorted("sources", view, each["partitions"])
        of_all = f"{len(rows)} of {each['partition_count']}"
        title = f"{each['name']}: {of_all} partitions{_by('sources', view)}"
        parts += [Text(), Text(title, style="bold"), *_if(_partitions(view, rows), rows, gap=False)]
        parts += [
            _note(f"{name}: lost changes ({', '.join(gap['counts'])})", "red")
            for name, gap in each["gaps"].items()
            if gap["stale"]
        ]
        if each["last_error"]:
            parts.append(_note(f"last error: {each['last_error']}"))
    return Group(*parts)


def tables(view: View) -> RenderableType:
    found = view.status["tables"]
    rows = _sorted("tables", view, found)[: view.most]
    if not found:
        return Text("no tables are known yet")
    more = f", {len(rows)} of {len(found)}" if len(rows) < len(found) else ""
    return Group(
        Text(f"tables{_by('tables', view)}{more}", style="bold"),
        grid([
            Cells(head="table", cells=[_name(view, each) for each in rows], least=_TABLE),
            Cells(head="state", cells=[each["state"] for each in rows], least=_STATE),
            number("changes", [f"{_changes(each):,}" for each in rows]),
            number("a second", [rate(each.get("rate")) for each in rows]),
            number("idle", [seconds(each.get("last_change_seconds")) for each in rows], rank=2),
            number("lag", [seconds(each.get("lag_seconds")) for each in rows], rank=3),
            number("held", [_count(each.get("held")) for each in rows], rank=4),
            number("letters", [_count(each.get("letters")) for each in rows], rank=5),
        ], view.width),
    )  # fmt: skip


def snapshots(view: View) -> RenderableType:
    """Those that run, and of each table the last that ended."""
    backends = view.status["backends"]
    found = [each for backend in backends for each in backend["snapshots"]["current"]]
    ended = [
        {"table": table, **last}
        for backend in backends
        for table, last in backend["snapshots"]["last"].items()
    ]
    parts = [
        _note(f"{each['name']}: {each['snapshots']['refusal']}", "yellow")
        for each in backends
        if each["snapshots"]["refusal"]
    ]
    if found:
        parts += [Text("running", style="bold"), _running(view, found), Text()]
    if ended:
        rows = _sorted("snapshots", view, ended)
        last = grid([
            Cells(head="table", cells=[each["table"] for each in rows], least=_TABLE),
            Cells(head="state", cells=[each["state"] for each in rows], least=_STATE),
            number("rows", [f"{each['rows']:,}" for each in rows]),
            Cells(head="ended", cells=[_local(each["at"]) for each in rows], rank=1),
            Cells(head="id", cells=[each["snapshot_id"] for each in rows], rank=2),
        ], view.width)  # fmt: skip
        parts += [Text(f"ended since the start{_by('snapshots', view)}", style="bold"), last]
    return Group(*parts) if parts else Text("no snapshot ran since the start")


def letters(view: View) -> RenderableType:
    """What was set aside: the counts by reason since the start, and the letters that are there."""
    parts: list[RenderableType] = [
        Text(f"{each['name']}: {count:,} set aside since the start: {reason}")
        for each in view.status["sinks"]
        for reason, count in each["dead_letters"].items()
    ]
    if isinstance(view.letters, str):
        return Group(*parts, _note(view.letters, "yellow"))
    if not (rows := _sorted("letters", view, view.letters)):
        return Group(*parts, Text("no dead letters"))
    listed = grid([
        number("id", [str(each["id"]) for each in rows]),
        Cells(head="stored", cells=[_local(each["stored_at"]) for each in rows], rank=1),
        Cells(head="table", cells=[each["table"] or "-" for each in rows], least=_TABLE),
        Cells(head="reason", cells=[each["reason"] for each in rows], least=_STATE),
        Cells(head="error", cells=[str(each.get("error") or "-") for each in rows], least=_NAME),
    ], view.width)  # fmt: skip
    title = f"{len(rows)} dead letters{_by('letters', view)}"
    return Group(*parts, Text(title, style="bold"), listed)


def _sorted(screen: str, view: View, rows: Sequence[Row]) -> Sequence[Row]:
    orders = ORDERS[screen]
    return sorted(rows, key=orders.get(view.order, next(iter(orders.values()))))


def _by(screen: str, view: View) -> str:
    orders = ORDERS[screen]
    return f", by {view.order if view.order in orders else next(iter(orders))}"


def _head(view: View) -> list[RenderableType]:
    status, health = view.status, view.status["health"]
    color = _COLORS.get(health, "")
    parts: list[RenderableType] = [
        Text.assemble(
            (f"{status['name']}  ", "bold"), (health, f"bold {color}"),
            f"  up {seconds(status['uptime_seconds'])}  penstock {status['version']}",
        )
    ]  # fmt: skip
    for reason, remedy in zip(status["reasons"], status["remedies"], strict=True):
        code = re.search(r"\[([a-z]+\.[a-z-]+)\]$", reason)
        see = f"penstock explain {code[1]}" if code else remedy["see"].removeprefix(f"{DOCS}/")
        more = Text.assemble(f"{remedy['do']}\nsee: ", (see, f"link {remedy['see']}"))
        parts += [_note(reason, color), Padding(more, (0, 0, 0, 4))]
    return parts


def _note(text: str, style: str = "") -> RenderableType:
    return Padding(Text(text, style=style), (0, 0, 0, 2))


def _if(shown: RenderableType, found: Sequence[Any], *, gap: bool = True) -> list[RenderableType]:
    return [*([Text()] if gap else []), shown] if found else []


def _backends(view: View) -> RenderableType:
    rows = view.status["backends"]
    return grid([
        Cells(head="source", cells=[each["name"] for each in rows], least=_NAME),
        Cells(head="state", cells=[_state(each) for each in rows], least=_STATE),
        number("read", [f"{_read(view, each):,}" for each in rows]),
        number("a second", [rate(each["rate"]) for each in rows]),
        number("lag", [seconds(each["lag_seconds"]) for each in rows]),
        number("history", [_history_left(each) for each in rows], rank=1),
        number("buffered", [f"{each['buffered_events']:,}" for each in rows], rank=2),
    ], view.width, [view.series(f"read/{each['name']}") for each in rows])  # fmt: skip


def _read(view: View, row: Row) -> int:
    """Two processes report what was read and what was stored: of one backend the stored changes
    were read, although its own report is some seconds older."""
    is_only = len(view.status["backends"]) == 1
    stored = sum(each["acknowledged"] for each in view.status["sinks"]) if is_only else 0
    return max(int(row["events"]), int(stored))


def _sinks(view: View) -> RenderableType:
    rows = view.status["sinks"]
    return grid([
        Cells(head="sink", cells=[each["name"] for each in rows], least=_NAME),
        Cells(head="state", cells=[_state_of_sink(each) for each in rows], least=_STATE),
        number("stored", [f"{each['acknowledged']:,}" for each in rows]),
        number("a second", [rate(each["rate"]) for each in rows]),
        number("p50", [_milliseconds(each["latency_p50_ms"]) for each in rows], rank=2),
        number("p99", [_milliseconds(each["latency_p99_ms"]) for each in rows], rank=1),
        number("letters", [f"{sum(each['dead_letters'].values()):,}" for each in rows]),
    ], view.width, [view.series(f"stored/{each['name']}") for each in rows])  # fmt: skip


def _partitions(view: View, rows: Sequence[Row]) -> RenderableType:
    return grid([
        Cells(head="partition", cells=[each["partition"] for each in rows], least=_NAME),
        Cells(head="state", cells=[each["state"] for each in rows], least=_STATE),
        Cells(head="health", cells=[each["health"] for each in rows], rank=3),
        number("lag", [seconds(each["lag_seconds"]) for each in rows]),
        number("history", [_history_left(each) for each in rows], rank=1),
        number("buffered", [f"{each['buffered_events']:,}" for each in rows], rank=4),
        Cells(head="place", cells=[each["place"] or "-" for each in rows], least=_NAME, rank=2),
    ], view.width)  # fmt: skip


def _running(view: View, rows: Sequence[Row]) -> RenderableType:
    return grid([
        Cells(head="table", cells=[each["table"] for each in rows], least=_TABLE),
        Cells(head="state", cells=[each["state"] for each in rows], least=_STATE),
        Cells(head="done", cells=[bar(each["done"], each["ranges"]) for each in rows]),
        number("rows", [f"{each['rows']:,}" for each in rows]),
        number("a second", [size(each["bytes_per_second"]) for each in rows], rank=2),
        number("to go", [seconds(each["seconds_left"]) for each in rows], rank=1),
    ], view.width)  # fmt: skip


def _state(backend: Row) -> str:
    if backend["blocked"]:
        return "stands still"
    if backend["paused"]:
        return "paused"
    return "connected" if backend["connected"] else "disconnected"


def _state_of_sink(sink: Row) -> str:
    if sink["connected"] is False:
        return "disconnected"
    if sink["breaker"] not in (None, "closed"):
        return f"breaker {sink['breaker']}"
    return "connected" if sink["pressure"] in (None, "normal") else str(sink["pressure"])


def _history_left(reading: Row) -> str:
    """In bytes where the source bounds its log so, else in seconds."""
    room = reading["window_left_bytes"]
    return seconds(reading["window_left_seconds"]) if room is None else size(room)


def _milliseconds(value: float | None) -> str:
    return seconds(None if value is None else value / 1000)


def _whose(table: Row) -> str:
    return " / ".join(filter(None, (table["backend"], table.get("sid"), table["table"])))


def _name(view: View, table: Row) -> str:
    """Without its backend where there is no other."""
    is_alone = len(view.status["backends"]) == 1
    return _whose({**table, "backend": ""} if is_alone else table)


def _changes(table: Row) -> int:
    return sum((table.get("applied") or {}).values())


def _count(value: int | None) -> str:
    return f"{value or 0:,}"


def _local(at: str) -> str:
    """A time of this machine's zone, to the second."""
    return datetime.fromisoformat(at).astimezone().strftime("%m-%d %H:%M:%S")


# What `top` shows, in the order of its digits.
SCREENS: Mapping[str, Callable[[View], RenderableType]] = {
    "overview": overview, "sources": sources, "tables": tables, "snapshots": snapshots,
    "letters": letters,
}  # fmt: skip
_OF_TABLES: Mapping[str, Order] = {
    "rate": lambda row: (-(row.get("rate") or 0), _whose(row)),
    "changes": lambda row: -_changes(row),
    "state": lambda row: (row["state"] in ("following", "live"), row["state"], _whose(row)),
    "name": _whose,
}
# Of each screen the orders of its rows.
ORDERS: Mapping[str, Mapping[str, Order]] = {
    "overview": _OF_TABLES,
    "tables": _OF_TABLES,
    "sources": {
        "attention": lambda _: 0,  # as the server has them
        "lag": lambda row: -(row["lag_seconds"] or 0),
        "name": lambda row: row["partition"],
    },
    "snapshots": {
        "table": lambda row: row["table"], "state": lambda row: row["state"],
        "rows": lambda row: -row["rows"],
    },
    "letters": {
        "age": lambda _: 0,  # the oldest first, as the server has them
        "table": lambda row: row["table"] or "", "reason": lambda row: row["reason"],
    },
}  # fmt: skip
