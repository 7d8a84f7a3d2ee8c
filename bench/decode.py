"""What decoding costs: `python -m bench.decode`, in microseconds of CPU a row.

From a page of pgoutput, or of MongoDB's change events, to a batch of changes, with the native
kernel and without, in one go: compare the two halves, not figures of two runs. The best of many
runs counts.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable

from penstock.model.change import Images
from penstock.model.page import Decoder, Page
from penstock.wire.changestream.decoder import ChangeStreamDecoder
from penstock.wire.pgoutput.context import Context
from penstock.wire.pgoutput.decoder import DecoderSettings, PgoutputDecoder
from tests.wire.changestream.made import page as events_page
from tests.wire.pages import begin, commit, insert, page_of, relation
from tests.work.scenarios import inserted

IMAGES: tuple[Images, ...] = ("msgpack", "json", "text")
# The table of the other benchmarks: ten columns.
_TEN: dict[str, tuple[int, object]] = {
    "id": (20, 1_000_000), "name": (25, "customer 1000000"),
    "note": (25, "a note of ordinary length for row 1000000"), "quantity": (23, 17),
    "active": (16, "t"), "price": (1700, "1000100.0000"), "ratio": (701, "142857.14285714287"),
    "changed": (1184, "2026-11-21 10:41:34.123456+00"),
    "detail": (3802, '{"n": 1000000, "source": "bench"}'), "tags": (1009, '{red,green,"tag 3"}'),
}  # fmt: skip


def page(columns: int, rows: int, lsn: int = 255) -> Page:
    """One transaction of so many rows of so many columns: the ten, over and over."""
    names, ten = list(_TEN), list(_TEN.values())
    wide = {f"{names[n % 10]}_{n}": ten[n % 10] for n in range(columns)}
    table = relation(1, {name: oid for name, (oid, _) in wide.items()}, key=["id_0"])
    cells = [cell for _, cell in wide.values()][1:]
    changes = [insert(1, [number, *cells]) for number in range(rows)]
    return page_of([begin(lsn), *changes, commit(lsn)], context=Context(relations=(table,)))


def _postgres(images: Images) -> Decoder:
    return PgoutputDecoder(DecoderSettings(backend="b", database="d", images=images))


def _mongodb(images: Images) -> Decoder:
    return ChangeStreamDecoder(backend="b", images=images)


def cost(work: Page, images: Images, decoding: Callable[[Images], Decoder] = _postgres) -> float:
    """Microseconds of CPU a row."""
    decoder = decoding(images)
    repeat = max(1, 2000 // work.count)
    best = float("inf")
    for _ in range(15):
        started = time.process_time()
        for _ in range(repeat):
            decoder.decode(work)
        best = min(best, (time.process_time() - started) / repeat)
    return best * 1e6 / work.count


def measure() -> None:
    for columns, rows in ((10, 1000), (10, 100), (10, 1), (5, 1000), (20, 1000), (100, 1000)):
        work = page(columns, rows)
        figures = " ".join(f"{cost(work, images):8.2f}" for images in IMAGES)
        sys.stdout.write(f"{figures}   {columns:3} columns, {rows:4} rows a page\n")
    for rows in (1000, 100):
        events = events_page(*(inserted(number) for number in range(rows)))
        each = (cost(events, images, _mongodb) for images in IMAGES[:2])
        figures = " ".join(f"{microseconds:8.2f}" for microseconds in each)
        size = len(events.payload) // rows
        sys.stdout.write(f"{figures}   MongoDB's events of {size} bytes, {rows:4} a page\n")


def main() -> None:
    if "PENSTOCK_NATIVE" in os.environ:
        measure()
        return
    for mode in ("off", "on"):
        sys.stdout.write(f"PENSTOCK_NATIVE={mode}: us of CPU a row, images msgpack, json, text\n")
        sys.stdout.flush()
        again = [sys.executable, "-m", "bench.decode"]
        subprocess.run(again, env={**os.environ, "PENSTOCK_NATIVE": mode}, check=True)


if __name__ == "__main__":
    main()
