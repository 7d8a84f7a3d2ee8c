"""What decoding costs: `python tests/wire/measure.py` prints microseconds of CPU per change.

Pages of the benchmark's ten-column table (bigserial, two texts, int, bool, numeric(12,4), float8,
timestamptz, jsonb, text[]), from a page to a batch of changes, the best of many runs.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from penstock.model.page import Page
from penstock.wire.pgoutput.decoder import DecoderSettings, PgoutputDecoder
from tests.wire.pages import begin, commit, delete, insert, page_of, relation, update

COLUMNS = {
    "id": 20, "name": 25, "description": 25, "quantity": 23, "active": 16, "price": 1700,
    "ratio": 701, "created_at": 1184, "attributes": 3802, "tags": 1009,
}  # fmt: skip
TABLE = relation(1, COLUMNS, key=["id"])
RUNS = 50


def row(number: int) -> list[object]:
    return [
        1_000_000 + number, f"customer {number}", "a text that goes on for a while", number % 100,
        "tf"[number % 2], f"{number}.5000", number / 7, "2026-11-21 10:41:34.123456+00",
        '{"a": 1, "b": [1, 2, 3], "c": "text"}', "{red,green,blue}",
    ]  # fmt: skip


def pages(size: int, rows: int) -> list[Page]:
    """So many rows in transactions of a size, about a thousand to a page."""
    messages = [TABLE]
    for start in range(0, rows, size):
        lsn = 1000 + start
        messages.append(begin(lsn))
        messages += [insert(1, row(number)) for number in range(start, start + size)]
        messages.append(commit(lsn))
    return [page_of(messages)]


def others() -> list[Page]:
    key = [5, *[None] * 9]
    changes = [update(1, [*row(n)[:2], ..., *row(n)[3:]]) for n in range(500)]
    changes += [delete(1, key=key) for _ in range(500)]
    return [page_of([TABLE, begin(1), *changes, commit(1)])]


def cost(decode: Callable[[Page], object], work: list[Page]) -> float:
    best = float("inf")
    for _ in range(RUNS):
        started = time.process_time()
        for page in work:
            decode(page)
        best = min(best, time.process_time() - started)
    return best * 1e6 / sum(page.count for page in work)


def main() -> None:
    cases = {
        "inserts, 1,000 a transaction": pages(1000, 1000),
        "inserts, 100 a transaction": pages(100, 1000),
        "inserts, 1 a transaction": pages(1, 1000),
        "a page of 10 inserts": pages(10, 10),
        "updates with unchanged TOAST, deletes": others(),
    }
    for name, work in cases.items():
        numbers = []
        for images in ("msgpack", "json"):
            decoder = PgoutputDecoder(DecoderSettings(backend="b", database="d", images=images))
            numbers.append(f"{images} {cost(decoder.decode, work):6.2f}")
        sys.stdout.write(f"{name:40} {'   '.join(numbers)}\n")


if __name__ == "__main__":
    main()
