"""How objects show themselves in Jupyter: a small table of what they know of themselves, drawn
again in place while it changes. No row data. IPython is imported only where it runs already.
"""

import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from typing import Any

EVERY = 1.0  # seconds between two looks at what is shown


class Drawn(ABC):
    """What Jupyter shows as a table, up to date for as long as the object lives. Elsewhere, also in
    IPython's terminal, it is its `repr`."""

    @abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """Name -> value; any thread may ask. Neither row data nor secrets."""

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(
            f'<tr><th style="text-align:left">{escape(str(name))}</th>'
            f'<td style="text-align:left">{escape(str(value))}</td></tr>'
            for name, value in self.facts().items()
        )
        return f"<table><caption>{escape(repr(self))}</caption>{rows}</table>"

    def _ipython_display_(self) -> None:
        shell: Any = sys.modules["IPython"].get_ipython()
        if not hasattr(shell, "kernel"):
            raise NotImplementedError  # nothing is drawn in place there: its `repr`
        shown = self._shown()
        display: Any = import_module("IPython.display").display
        handle = display(shown, raw=True, display_id=True)
        threading.Thread(
            target=_redraw, args=(weakref.ref(self), handle, shown), daemon=True
        ).start()

    def _shown(self) -> dict[str, str]:
        return {"text/html": self._repr_html_(), "text/plain": repr(self)}


def _redraw(drawn: "weakref.ref[Drawn]", handle: Any, shown: dict[str, str]) -> None:
    """Until the object is gone, or what it knows cannot be had any more."""
    pause = threading.Event()
    while not pause.wait(EVERY) and (alive := drawn()) is not None:
        try:
            now = alive._shown()
        except Exception:  # Spark was stopped
            return
        del alive
        if now != shown:
            shown = now
            handle.update(shown, raw=True)


class Watched(Drawn):
    """A query of Spark, as Jupyter shows it."""

    def __init__(self, query: Any) -> None:
        self._query = query

    def __repr__(self) -> str:
        return f"<Query {self._query.name or self._query.id}>"

    def facts(self) -> Mapping[str, Any]:
        query = self._query
        if not query.isActive:
            failed = query.exception() is not None
            state = "failed: see its `exception()`" if failed else "stopped"
        else:
            state = query.status["message"]
        last: Mapping[str, Any] = query.lastProgress or {}
        return {
            "state": state,
            "micro-batch": last.get("batchId", "none yet"),
            "rows of it": last.get("numInputRows", 0),
            "rows read per second": round(last.get("inputRowsPerSecond") or 0),
            "rows written per second": round(last.get("processedRowsPerSecond") or 0),
            "as of": last.get("timestamp", ""),
        }


def watch(query: Any) -> Watched:
    """Shows a running query of Spark in Jupyter, as the last line of a cell:
    `penstock.watch(query)`. `query` is what `writeStream...start()` returns. Reads its status once
    a second while the result is alive; the query itself does not notice."""
    return Watched(query)
