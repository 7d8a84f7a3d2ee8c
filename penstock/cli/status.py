"""`penstock status` and `penstock top`: how a running pipeline is, by what its ops server says."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli.options import OpsClient, load_deployment
from penstock.model.errors import SettingsError, Unavailable
from penstock.model.settings import Secret

_DEFAULT = "http://127.0.0.1:9090"
_EVERY = 1.0  # seconds
_WIDTH = 60  # values of a curve
_BARS = "▁▂▃▄▅▆▇█"
_COLORS = {"ok": "green", "degraded": "yellow", "standby": "yellow", "unhealthy": "red"}
_TABLES = 20  # that are shown

_where = click.argument("where", metavar="[FILE | URL]", default=_DEFAULT)
_token = click.option("--token", envvar="PENSTOCK_OPS_TOKEN", help="With a URL; else the file's.")


@click.command("status")
@_where
@click.option("--json", "as_json", is_flag=True, help="What /status answers.")
@_token
def status(*, where: str, as_json: bool, token: str | None) -> None:
    """Show how a running pipeline is: by its FILE, or by the URL of its ops server.

    Exits with 0 if it is healthy, else with 1.
    """
    _once(_ops(where, token), as_json=as_json)


@click.command("top")
@_where
@click.option("--once", is_flag=True, help="Print one frame; exits with 0 if it is healthy.")
@_token
def top(*, where: str, once: bool, token: str | None) -> None:
    """Watch a running pipeline in a terminal, until Ctrl-C: by its FILE, or by the URL of its ops
    server."""
    ops = _ops(where, token)
    if once:
        _once(ops, as_json=False)
    with Live(auto_refresh=False, screen=True) as live:
        try:
            while True:
                try:
                    live.update(
                        frame(_asked(ops, "/status"), _asked(ops, "/history")), refresh=True
                    )
                except Unavailable as error:
                    live.update(Text(str(error), style="red"), refresh=True)
                time.sleep(_EVERY)
        except KeyboardInterrupt:
            return


def _ops(where: str, token: str | None) -> OpsClient:
    """The ops server of a pipeline file, or at a URL. Raises SettingsError."""
    if "://" not in where:
        ops = load_deployment(Path(where), None).ops
        return OpsClient.of(ops.model_copy(update={"token": Secret(token)}) if token else ops)
    url = urlsplit(where)
    if url.scheme != "http" or not url.hostname:
        raise SettingsError(f"{where} is no http:// URL", "cli", hint=f"such as {_DEFAULT}")
    return OpsClient(url.hostname, url.port or 80, path=url.path.rstrip("/"), token=token or "")


def _asked(ops: OpsClient, path: str) -> dict[str, Any]:
    if "error" in (found := ops.answer(path)):
        raise SettingsError(str(found["error"]), "cli", hint=str(found.get("info", "")))
    return found


def _once(ops: OpsClient, *, as_json: bool) -> None:
    found = _asked(ops, "/status")
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        Console().print(frame(found, _asked(ops, "/history")))
    raise SystemExit(0 if found["health"] == "ok" else 1)


def frame(status: Mapping[str, Any], history: Mapping[str, Any]) -> RenderableType:
    health = status["health"]
    head = Text.assemble(
        (f"{status['name']}  ", "bold"), (health, f"bold {_COLORS[health]}"),
        f"  up {status['uptime_seconds'] / 60:.0f} min  penstock {status['version']}",
    )  # fmt: skip
    parts: list[RenderableType] = [head]
    for reason, remedy in zip(status["reasons"], status["remedies"], strict=True):
        parts.append(Text(f"  {reason}", style=_COLORS[health]))
        parts.append(Text(f"    {remedy['do']} See {remedy['see']}"))
    parts += [Text(), _owners(status, history["series"])]
    if status["tables"]:
        parts += [Text(), _tables(status["tables"])]
    return Group(*parts)


def _owners(status: Mapping[str, Any], series: Mapping[str, Sequence[float | None]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("", "changes", "a second", "lag", "p50", "p99", "state", "last minute"):
        table.add_column(name, overflow="fold")
    for each in status["backends"]:
        read = series.get(f"read/{each['name']}", ())
        paused = "paused" if each["paused"] else ""
        state = each["blocked"] or paused or ("connected" if each["connected"] else "disconnected")
        table.add_row(
            each["name"], f"{each['events']:,}", _last(read), _number(each["lag_seconds"], "s"),
            "", "", state, curve(read),
        )  # fmt: skip
    for each in status["sinks"]:
        stored = series.get(f"stored/{each['name']}", ())
        table.add_row(
            f"→ {each['name']}", f"{each['acknowledged']:,}", _last(stored), "",
            _number(each["latency_p50_ms"], "ms"), _number(each["latency_p99_ms"], "ms"),
            f"{sum(each['dead_letters'].values()):,} dead letters", curve(stored),
        )  # fmt: skip
    return table


def _tables(found: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("table", "state", "changes", "a second"):
        table.add_column(name)
    for each in sorted(found, key=lambda each: -(each.get("rate") or 0))[:_TABLES]:
        whose = " / ".join(filter(None, (each["backend"], each.get("sid"), each["table"])))
        changes = sum((each.get("applied") or {}).values())
        table.add_row(whose, each["state"], f"{changes:,}", _number(each.get("rate"), ""))
    return table


def curve(values: Sequence[float | None]) -> str:
    """The last values as bars, from 0 to the highest; a gap where nothing is known. Pure."""
    shown = values[-_WIDTH:]
    highest = max((value for value in shown if value is not None), default=0) or 1
    bars = len(_BARS) - 1
    return "".join(
        " " if value is None else _BARS[round(bars * value / highest)] for value in shown
    )


def _last(values: Sequence[float | None]) -> str:
    return _number(values[-1] if values else None, "")


def _number(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:,.1f} {unit}".rstrip()
