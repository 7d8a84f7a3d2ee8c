"""Notifications arrive, in order and once, and nothing waits for a webhook."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.model.settings import Secret
from penstock.ops import webhooks
from penstock.ops.board import Board
from penstock.ops.notifications import Notification, sample
from penstock.ops.reports import ProcessReport, QueryReport, SourceReport
from penstock.ops.status import Status, assess
from penstock.ops.thresholds import Webhook
from penstock.ops.webhooks import Notifier, NotTaken, Sender, post, try_each
from tests.servers import free_port
from tests.servers.webhook import WebhookServer
from tests.waiting import until

KEY = "/services/T0/verysecret?sig=alsosecret"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "_EVERY", 0.01)
    monkeypatch.setattr(webhooks, "_tries", lambda: iter(lambda: 0.05, 0))


@pytest.fixture
def board() -> Board:
    return Board("/nowhere")


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    """No line has anything of the URL."""
    with capture_logs() as found:
        yield found
    assert "secret" not in str(found)


def webhook(url: str, **more: Any) -> Webhook:
    return Webhook(url=Secret(url + KEY), **more)


def note(title: str) -> Notification:
    found = sample("shop", host="h", at=time.time())
    return Notification(**{**{n: getattr(found, n) for n in found.__slots__}, "title": title,
                           "kind": "gap"})  # fmt: skip


def counts(board: Board) -> Any:
    return dict(board.snapshot().latest(ProcessReport, "").notifications)


def test_what_is_refused_for_now_is_sent_again_in_order(board: Board, logs: list[Any]) -> None:
    with (
        WebhookServer(503, 429, 503) as hook,
        Sender(webhook(hook.url), "w", board) as sender,
    ):
        for title in ("one", "two", "three"):
            sender.put(note(title))
        until(lambda: len(hook.taken) == 3)
        until(lambda: counts(board) == {"sent": 3, "failed": 3})
    assert [each["title"] for each in hook.taken] == ["one", "two", "three"]
    assert set(hook.paths) == {KEY}
    events = [each["event"] for each in logs]
    assert events == ["a webhook is tried again", "a webhook takes notifications again"]


@pytest.mark.parametrize("code", [400, 404, 302, 307])
def test_what_is_refused_for_good_is_dropped_and_counted(
    board: Board, logs: list[Any], code: int
) -> None:
    with WebhookServer(code) as hook, Sender(webhook(hook.url), "w", board) as sender:
        sender.put(note("one"))
        sender.put(note("two"))
        until(lambda: counts(board) == {"failed": 1, "dropped": 1, "sent": 1})
    assert [each["title"] for each in hook.taken] == ["two"]
    assert "GET" not in hook.paths
    (line,) = logs
    assert (line["event"], line["why"]) == ("a notification was dropped", f"HTTP {code}")


def test_a_webhook_that_is_away_gets_them_when_it_is_back(board: Board, logs: list[Any]) -> None:
    hook = WebhookServer()
    with hook:
        target = webhook(hook.url)
    with Sender(target, "w", board) as sender:
        sender.put(note("one"))
        until(lambda: counts(board).get("failed", 0) > 1)
        with hook:
            until(lambda: hook.taken)
    assert [each["error"] for each in logs if "error" in each] == ["Connection refused"]


def test_one_that_does_not_answer_holds_up_nothing(board: Board, logs: list[Any]) -> None:
    status = Watched(board)
    with WebhookServer(*[0] * 50) as slow, WebhookServer() as quick:
        both = [webhook(slow.url), webhook(quick.url)]
        notifier = Notifier(both, board, settled=0, secrets=set())
        status.turn_bad()
        began = time.monotonic()
        notifier.look(status())
        assert time.monotonic() - began < 5
        until(lambda: quick.taken)
        began = time.monotonic()
        notifier.close()
        assert time.monotonic() - began < 8, "a post takes ten seconds"
    assert not slow.taken


def test_a_timeout_is_tried_again(board: Board) -> None:
    with (
        WebhookServer(0, 200) as hook,
        Sender(webhook(hook.url), "w", board, timeout=0.2) as sender,
    ):
        sender.put(note("one"))
        until(lambda: hook.taken)


def test_what_waits_is_bounded_and_what_is_dropped_is_counted(
    board: Board, logs: list[Any]
) -> None:
    target = webhook(f"http://127.0.0.1:{free_port()}")
    with Sender(target, "w", board) as sender:
        for number in range(150):
            sender.put(note(str(number)))
        assert counts(board)["dropped"] >= 49
    dropped = [each for each in logs if each["event"] == "a notification was dropped"]
    assert counts(board)["dropped"] == len(dropped) == 150
    assert {each["why"] for each in dropped} <= {
        "too many wait", "the process ends", "Connection refused"
    }  # fmt: skip


def test_each_webhook_gets_its_kinds(board: Board) -> None:
    with WebhookServer() as one, WebhookServer() as other:
        first = Sender(webhook(one.url, when=("gap",)), "a", board)
        second = Sender(webhook(other.url, when=("health", "at-risk")), "b", board)
        with first, second:
            for sender in (second, first):
                sender.put(note("lost"))
            until(lambda: one.taken)
    assert not other.taken


class Watched:
    """The status of a pipeline."""

    def __init__(self, board: Board) -> None:
        self._board = board
        board.add("a", SourceReport(connected=True))
        board.add("a", QueryReport(begun=True))

    def turn_bad(self, why: str = "the slot is gone") -> None:
        self._board.add("a", QueryReport(blocked=why))

    def __call__(self) -> Status:
        return assess(
            self._board.snapshot(), name="shop", version="1", backends=["a"], started=0.0,
            now=time.monotonic(),
        )  # fmt: skip


def test_secrets_are_blotted_out(board: Board) -> None:
    status = Watched(board)
    status.turn_bad("hunter22 does not log in")
    with (
        WebhookServer() as hook,
        Notifier([webhook(hook.url)], board, settled=0, secrets={"hunter22"}) as notifier,
    ):
        notifier.look(status())
        until(lambda: hook.taken)
    assert "*** does not log in" in str(hook.taken)
    assert "hunter22" not in str(hook.taken)


def test_a_secret_that_is_a_word_of_ours_stops_nothing(board: Board) -> None:
    status = Watched(board)
    status.turn_bad()
    with (
        WebhookServer() as hook,
        Notifier([webhook(hook.url)], board, settled=0, secrets={"error"}) as notifier,
    ):
        notifier.hide({"health", "slot"})
        notifier.look(status())
        until(lambda: hook.taken)
    assert (hook.taken[0]["kind"], hook.taken[0]["level"]) == ("health", "error")
    assert "the *** is gone" in hook.taken[0]["lines"][0]


def test_a_pipeline_without_webhooks_has_no_thread_for_them(board: Board) -> None:
    with Notifier([], board, settled=0, secrets=set()) as notifier:
        notifier.look(Watched(board)())


def test_a_test_is_posted_once_to_each() -> None:
    with WebhookServer(503) as hook, WebhookServer() as other:
        found = list(try_each([webhook(hook.url), webhook(other.url)], "shop"))
    assert found == [("ops.notify[0]", "HTTP 503"), ("ops.notify[1]", "")]
    assert [each["kind"] for each in other.taken] == ["test"]


@pytest.mark.parametrize("url", ["http://nowhere.invalid", "http://127.0.0.1:1", "https://[::1]:1"])
def test_an_error_has_nothing_of_the_url(url: str) -> None:
    with pytest.raises(NotTaken) as found:
        post(webhook(url), note("x"), timeout=1)
    assert "secret" not in str(found.value)
    assert found.value.passes
