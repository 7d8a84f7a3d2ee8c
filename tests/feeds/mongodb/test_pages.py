"""Which token belongs to which place."""

import bson

from penstock.feeds.mongodb.pages import ReadTokens
from penstock.model.position import Bookmark, Place
from penstock.wire.changestream.events import cursor_of

BEGUN = Bookmark(None, {"time": [1, 0]})


def token(number: int) -> bytes:
    return bson.encode({"_data": f"{number:04X}"})


def mark(number: int, at: Place | None) -> dict[str, object]:
    return {"token": {"_data": f"{number:04X}"}, "place": None if at is None else str(at)}


def place(time: int, ordinal: int = 0) -> Place:
    return Place(cursor_of(time), ordinal)


def made() -> ReadTokens:
    """Three pages: 1:0 1:1 | 2:0 3:0 | 3:1; tokens 1 to 5."""
    tokens = ReadTokens(BEGUN, "", "", at=None, also={})
    tokens.read([(1, 0), (1, 1)], [token(1), token(2)], place(1, 1))
    tokens.read([(2, 0), (3, 0)], [token(3), token(4)], place(3))
    tokens.read([(3, 1)], [token(5)], place(3, 1))
    return tokens


def test_every_place_has_its_own_token() -> None:
    places = [place(1), place(1, 1), place(2), place(3), place(3, 1)]
    tokens = made()
    for number, each in enumerate(places, start=1):
        assert tokens.bookmark(each) == Bookmark(each, mark(number, each))


def test_before_the_first_place_it_is_where_it_began() -> None:
    assert made().bookmark(None) == BEGUN


def test_an_idle_token_belongs_to_the_last_place_only() -> None:
    tokens = made()
    tokens.idle(token(9))
    assert tokens.bookmark(place(3)) == Bookmark(place(3), mark(4, place(3)))
    assert tokens.bookmark(place(3, 1)) == Bookmark(place(3, 1), mark(9, place(3, 1)))


def test_an_idle_token_before_the_first_change_moves_the_beginning() -> None:
    tokens = ReadTokens(BEGUN, "", "", at=None, also={})
    tokens.idle(token(9))
    assert tokens.bookmark(None) == Bookmark(None, mark(9, None))


def test_a_place_that_was_not_read_leaves_what_is_stored() -> None:
    tokens = made()
    assert tokens.bookmark(place(2, 7)) is None
    assert tokens.bookmark(place(9)) is None


def test_what_was_asked_for_is_not_kept() -> None:
    tokens = made()
    tokens.bookmark(place(3))
    assert tokens.bookmark(place(1)) is None, "progress does not go back"


def test_a_closed_following_forgets_nothing() -> None:
    tokens = made()
    tokens.close()
    for number, each in ((5, place(3, 1)), (1, place(1)), (3, place(2)), (2, place(1, 1))):
        assert tokens.bookmark(each) == Bookmark(each, mark(number, each))


def test_where_nothing_is_stored_the_place_that_it_began_after_is_not_it() -> None:
    begun = Bookmark(place(1), {})
    tokens = ReadTokens(begun, "", "", at=None, also={})
    tokens.read([(2, 0)], [token(1)], place(2))
    assert tokens.bookmark(None) is None
    assert tokens.bookmark(place(1)) == begun


def test_an_event_without_a_token_keeps_the_mark_before_it() -> None:
    tokens = made()
    tokens.read([(4, 0)], [b""], place(4))
    assert tokens.mark == mark(5, place(3, 1))
