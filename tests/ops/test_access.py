"""Who may read and act over HTTP."""

import pytest

from penstock.model.settings import Secret
from penstock.ops.requests import Access, OpsRequest, WrongTokens


def asked(path: str, token: str = "", client: str = "a", **headers: str) -> OpsRequest:
    given = {"authorization": f"Bearer {token}"} if token else {}
    return OpsRequest(method="GET", path=path, headers=given | headers, client=client)


def code(found: object) -> int:
    return getattr(found, "status_code", 200)


BOTH = {"token": Secret("operator"), "read_token": Secret("reader")}


@pytest.mark.parametrize("path", ["/", "/ready", "/health", "/ui/", "/ui/app.js"])
def test_without_a_token_only_this_is_read(path: str) -> None:
    assert Access(**BOTH).refusal(asked(path)) is None


@pytest.mark.parametrize("path", ["/status", "/metrics", "/actions", "/events", "/api/tbl", "/uix"])
def test_all_else_needs_one_of_both(path: str) -> None:
    access = Access(**BOTH)
    tokens = {"": 401, "x": 403, "reader": 200, "operator": 200}
    assert {token: code(access.refusal(asked(path, token))) for token in tokens} == tokens
    assert Access(token=Secret("operator")).refusal(asked(path)) is None


def test_acting_needs_the_operators() -> None:
    access = Access(**BOTH)
    tokens = {"": 401, "x": 403, "reader": 403, "operator": 200}
    assert {t: code(access.refusal_to_write(asked("/x", t))) for t in tokens} == tokens
    assert code(Access().refusal_to_write(asked("/x", "x"))) == 403


def test_after_five_wrong_ones_others_are_too_many_for_a_minute() -> None:
    now = [0.0]
    access = Access(**BOTH, wrong=WrongTokens(clock=lambda: now[0]))
    for _ in range(5):
        assert code(access.refusal_to_write(asked("/x", "wrong"))) == 403
    denied = access.refusal_to_write(asked("/x", "another"))
    assert denied is not None
    assert (denied.status_code, denied.headers["Retry-After"]) == (429, "60")
    assert code(access.refusal_to_write(asked("/x", "another", client="b"))) == 403
    now[0] = 60.0
    assert code(access.refusal_to_write(asked("/x", "another"))) == 403


def test_wrong_tokens_from_an_address_do_not_keep_the_right_ones_out() -> None:
    access = Access(**BOTH)
    for _ in range(6):
        access.refusal_to_write(asked("/x", "wrong"))
    assert access.refusal_to_write(asked("/x", "operator")) is None
    assert access.refusal(asked("/status", "reader")) is None
    assert code(access.refusal_to_write(asked("/x", "reader"))) == 403


def test_a_readers_token_that_may_not_act_is_no_wrong_one() -> None:
    access = Access(**BOTH)
    for _ in range(6):
        assert code(access.refusal_to_write(asked("/x", "reader"))) == 403
    assert access.refusal(asked("/status", "reader")) is None


def test_a_page_of_another_site_is_refused_whatever_its_token() -> None:
    found = Access(**BOTH).refusal(
        asked("/status", "operator", host="localhost", origin="http://evil.example")
    )
    assert code(found) == 403
