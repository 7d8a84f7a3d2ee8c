"""Tables that fit into a width: names and texts are shortened with an ellipsis, columns that matter
less are left out, and a curve takes what is left. Pure; nothing is folded in mid-word."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.table import Table

GAP = 2  # characters between two columns
_LEAST_CURVE, _MOST_CURVE = 12, 60
_BARS = "▁▂▃▄▅▆▇█"

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """A column of a table. `least`: characters that it may be shortened to, 0 if it is shown whole
    or not at all. `rank`: where the width does not suffice, the column with the highest goes first;
    0: never."""

    head: str
    cells: Sequence[str]
    least: int = 0
    rank: int = 0
    is_number: bool = False

    @property
    def whole(self) -> int:
        return max(map(cell_len, (self.head, *self.cells)))


def number(head: str, cells: Sequence[str], rank: int = 0) -> Cells:
    return Cells(head=head, cells=cells, rank=rank, is_number=True)


def fitted(columns: Sequence[Cells], width: int) -> list[tuple[Cells, int]]:
    """The columns that fit, in their order, each with its width. Pure."""
    shown = list(columns)
    while sum(min(each.least or each.whole, each.whole) + GAP for each in shown) - GAP > width:
        if not (last := max(shown, key=lambda each: each.rank)).rank:
            break
        shown.remove(last)
    widths = [each.whole for each in shown]
    excess = sum(widths) + GAP * (len(shown) - 1) - width
    for _ in range(max(0, excess)):
        spare = [0 if not c.least else w - c.least for c, w in zip(shown, widths, strict=True)]
        if max(spare) <= 0:
            break
        # The widest of those that may be shortened.
        place = max(range(len(shown)), key=lambda n: widths[n] if spare[n] > 0 else -1)
        widths[place] -= 1
    return list(zip(shown, widths, strict=True))


def grid(columns: Sequence[Cells], width: int, curves: Sequence[Values] = ()) -> Table:
    """A table of at most `width` characters; `curves`: of each row, by the second."""
    left = width - (_LEAST_CURVE + GAP) * bool(curves)
    shown = fitted(columns, left)
    used = sum(each + GAP for _, each in shown)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_edge=False)
    for column, characters in shown:
        table.add_column(
            column.head, width=characters, no_wrap=True, overflow="ellipsis",
            justify="right" if column.is_number else "left",
        )  # fmt: skip
    rows = [list(row) for row in zip(*(each.cells for each, _ in shown), strict=True)]
    room = min(_MOST_CURVE, width - used)
    if curves and room >= _LEAST_CURVE:
        table.add_column(f"last {room} s", width=room, no_wrap=True, overflow="crop")
        rows = [[*row, curve(each, room)] for row, each in zip(rows, curves, strict=True)]
    for row in rows:
        table.add_row(*row)
    return table


def curve(values: Values, width: int = _MOST_CURVE) -> str:
    """The last values as bars, from 0 to the highest; a gap where nothing is known. Pure."""
    shown = values[-width:]
    highest = max((value for value in shown if value is not None), default=0) or 1
    bars = len(_BARS) - 1
    return "".join(
        " " if value is None else _BARS[round(bars * value / highest)] for value in shown
    )


def seconds(value: float | None) -> str:
    """A time as a person says it: 38 ms, 17.5 s, 5 min, 3 h, 2 d. Pure."""
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    for unit, size, most in (("min", 60, 120), ("h", 3600, 48), ("d", 86400, 10**9)):
        if value < size * most:
            return f"{value / size:,.0f} {unit}"
    return "-"


def size(value: float | None) -> str:
    """Bytes: 310 B, 4.2 MB. Pure."""
    if value is None:
        return "-"
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"


def rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def bar(done: float, total: float, width: int = 12) -> str:
    full = round(width * min(1.0, done / total)) if total else 0
    return "█" * full + "░" * (width - full)
