"""The tables of `docs/reference/operations.md` that follow from what is declared of reports.

`python -m tests.docs.manual_tables` writes them anew, where a text has no links of its own.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric

from penstock.ops.metrics import families
from penstock.ops.partitions import PartitionStatus
from penstock.ops.reports import GapReport, SnapshotsReport, TableStatus, described
from penstock.ops.status import BackendStatus, BatchStatus, SinkStatus, Status

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "operations.md"
EMPTY = Status(
    name="", version="", uptime_seconds=0, health="ok", reasons=(), backends=(), sinks=(),
    last_batch=None,
)  # fmt: skip
# Heading -> the type whose fields are under it.
STATUS: dict[str, type[Any]] = {
    "Status": Status,
    "`backends[]`": BackendStatus,
    "`backends[].partitions[]`": PartitionStatus,
    "`backends[].gaps`": GapReport,
    "`backends[].batch`, `last_batch`": BatchStatus,
    "`backends[].snapshots`": SnapshotsReport,
    "`sinks[]`": SinkStatus,
    "`tables[]`": TableStatus,
}


def rows() -> Iterator[tuple[str, str]]:
    """(heading, row) of every table."""
    for heading, kind in STATUS.items():
        for key in sorted(described(kind)):
            yield heading, f"| `{key}` | {described(kind)[key].what} |"
    for family in sorted(families(EMPTY), key=lambda each: each.name):
        yield "Metrics", series_row(family)


def series_row(family: Metric) -> str:
    name = family.name + ("_total" if family.type == "counter" else "")
    names: tuple[str, ...] = vars(family)["_labelnames"]
    labels = ", ".join(f"`{label}`" for label in names)
    return f"| `{name}` | {family.type} | {labels} | {family.documentation} |".replace(
        "|  |", "| |"
    )


def without_links(text: str) -> str:
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)


def written() -> dict[str, list[str]]:
    """Heading -> its rows in the manual."""
    found: dict[str, list[str]] = {}
    heading = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("| `"):
            found.setdefault(heading, []).append(line)
    return found


def main() -> None:
    """Replaces the rows below each heading; a row that says the same with links stays."""
    known = {without_links(line): line for lines in written().values() for line in lines}
    wanted: dict[str, list[str]] = {}
    for heading, row in rows():
        wanted.setdefault(heading, []).append(known.get(row, row))
    lines, heading = [], ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if heading in wanted and line.startswith("| `"):
            continue
        lines.append(line)
        if heading in wanted and line.startswith("| ---"):
            lines += wanted[heading]
    PAGE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
