"""A dead letter's body: whole if it fits, cut if not, and read back."""

from typing import Any

import orjson
import pyarrow as pa
import pytest

from penstock.model.errors import Malformed
from penstock.sinks.poison.dead_letter import Letter, page_of, row_letter, row_of
from tests.sinks.changes import batch_of


def letter(raw: bytes, **more: Any) -> Letter:
    return Letter(**{
        "event_id": "b:00000000/00000001:4", "backend": "b", "partition": "p",
        "position": "00000000/00000001:4", "reason": "not-utf8", "error": "e", "kind": "source",
        "raw": raw, "raw_bytes": len(raw), "context": b"context", "schema": "public",
        "collection": "t", "captured_at": "2026-01-02T03:04:05.000006+00:00", **more,
    })  # fmt: skip


def test_a_letter_that_fits_reads_back() -> None:
    whole = letter(b"\x00\xff" * 1000)
    assert Letter.parse(whole.body(1 << 20)) == whole
    assert not whole.truncated


@pytest.mark.parametrize("limit", [8_000, 20_000, 1 << 20])
def test_no_body_is_larger_than_the_limit(limit: int) -> None:
    body = letter(b"x" * 2_000_000, context=b"c" * 9_000, error="e" * 5_000).body(limit)
    assert len(body) <= limit
    cut = Letter.parse(body)
    assert cut.truncated
    assert cut.raw_bytes == 2_000_000
    assert cut.raw == b"x" * len(cut.raw)
    assert orjson.loads(body)["truncated"] is True


def test_a_page_holds_the_letters_change_alone() -> None:
    page = page_of(letter(b"raw"))
    assert (page.payload, page.context, page.count) == (b"raw", b"context", 1)
    assert page.first == page.last == letter(b"raw").place
    assert page.captured_at == 1_767_323_045_000_006


@pytest.mark.parametrize("images", ["json", "msgpack"])
def test_a_change_reads_back_as_it_was(images: Any) -> None:
    batch: pa.RecordBatch = batch_of(3, images=images, unchanged=[["big"]] * 3).slice(1, 1)
    (row,) = batch.to_pylist()
    kept = Letter.parse(row_letter(row, images, "too-large", "e").body(1 << 20))
    assert row_of(kept).equals(batch)
    assert kept.table == "public.items"


@pytest.mark.parametrize("images", ["json", "msgpack"])
def test_a_letter_of_an_older_version_reads_back(images: Any) -> None:
    batch: pa.RecordBatch = batch_of(1, images=images)
    (row,) = batch.to_pylist()
    old = {name: row[name] for name in row if name not in ("delta", "mark", "route")}
    assert row_of(row_letter(old, images, "too-large", "e")).equals(batch)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"replayed": "x"}', b"\xff"])
def test_what_is_no_letter_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        Letter.parse(body)
