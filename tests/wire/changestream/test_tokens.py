"""Resume tokens, there and back."""

import json

import bson
import pytest
from bson.binary import Binary

from penstock.model.errors import Malformed
from penstock.wire.changestream.tokens import (
    hash_of,
    history_of,
    mark_ending,
    mark_of,
    mark_text,
    token_from_mark,
)

TOKENS = [
    {"_data": "8265F1"},
    {"_data": ""},
    {"_data": "8265F1", "_typeBits": Binary(b"\x01\x02")},
    {"_data": Binary(b"old", 5)},
]


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("era", ["", "e0001-"])
@pytest.mark.parametrize("cluster", ["", "rs0/6b05", 'a"b\\/'])
@pytest.mark.parametrize("database", ["", "shop/"])
def test_a_mark_gives_back_the_whole_token(
    token: dict[str, object], era: str, cluster: str, database: str
) -> None:
    raw = bson.encode(token)
    mark = mark_of(raw, era, cluster) | history_of(era, cluster, database)
    assert bson.encode(token_from_mark(json.loads(json.dumps(mark)))) == raw
    assert (mark.get("era", ""), mark.get("cluster", "")) == (era, cluster)
    text = mark_text(raw, mark_ending(era, cluster, database))
    assert text is not None
    assert json.loads(text) == mark


def test_no_token_is_no_mark() -> None:
    assert mark_text(b"", "}") is None


@pytest.mark.parametrize("mark", [{}, {"token": 1}, {"token": {"_data": {"a": 1}}}, {"token": []}])
def test_another_mark_is_malformed(mark: object) -> None:
    with pytest.raises(Malformed):
        token_from_mark(mark)


def test_hashes_differ_and_are_short() -> None:
    found = {hash_of(bson.encode(token)) for token in TOKENS}
    assert len(found) == len(TOKENS)
    assert {len(each) for each in found} == {16}
