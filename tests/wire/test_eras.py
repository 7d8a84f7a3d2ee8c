"""Eras: the changes of a later history sort after those of the earlier ones, and differ by name."""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.feeds.memory import MemoryDecoder, MemoryFeed, MemoryFeedSettings
from penstock.model.errors import Malformed
from penstock.model.page import Decoder, Page
from penstock.model.position import START, PartitionId
from penstock.wire.eras import EraDecoder, era_of, next_era
from penstock.wire.pgoutput.lsn import format_lsn, lsn_of

LSNS = st.integers(0, 2**64 - 1)


@given(LSNS, st.integers(0, 50))
def test_a_cursor_is_its_era_and_its_lsn(lsn: int, number: int) -> None:
    era = ""
    for _ in range(number):
        era = next_era(era)
    cursor = era + format_lsn(lsn)
    assert (era_of(cursor), lsn_of(cursor)) == (era, lsn)


@given(LSNS, LSNS)
def test_every_cursor_of_an_era_sorts_behind_all_of_those_before(one: int, other: int) -> None:
    era, before = "", format_lsn(one)
    for _ in range(30):
        era = next_era(era)
        after = era + format_lsn(other)
        assert after > before
        before = era + format_lsn(one)


def test_eras_end() -> None:
    with pytest.raises(Malformed):
        next_era("e9999-")


def a_page() -> tuple[Decoder, Page]:
    settings = MemoryFeedSettings(changes=10)
    feed = MemoryFeed(settings)
    following = feed.follow(PartitionId("p0"), START)
    (page, *_) = following.read(1.0)
    return MemoryDecoder(settings, "json"), page


def test_any_feeds_decoder_decodes_pages_of_a_later_era() -> None:
    inner, page = a_page()
    (plain,) = inner.decode(page)
    first, last = (each._replace(cursor=f"e0002-{each.cursor}") for each in (page.first, page.last))
    (batch,) = EraDecoder(inner).decode(replace(page, first=first, last=last))
    cursors = [f"e0002-{cursor}" for cursor in plain.column("cursor").to_pylist()]
    assert batch.column("cursor").to_pylist() == cursors
    ids = batch.column("event_id").to_pylist()
    assert ids == [
        f"memory:{cursor}:{ordinal}"
        for cursor, ordinal in zip(cursors, batch.column("ordinal").to_pylist(), strict=True)
    ]
    same = [name for name in batch.schema.names if name not in ("cursor", "event_id")]
    assert batch.select(same) == plain.select(same)


def test_pages_of_the_first_era_pass_as_they_are() -> None:
    inner, page = a_page()
    decoder = pickle.loads(pickle.dumps(EraDecoder(inner)))
    assert decoder.decode(page) == inner.decode(page)
    inner.unknown_types.add("t")
    assert EraDecoder(inner).unknown_types == {"t"}
