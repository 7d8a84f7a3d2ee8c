"""Logs: one line each, in the format asked for, and never a secret."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import redirect_stderr
from typing import cast

import pytest
import structlog

from penstock.ops.logs import Blot, Format, configure, metrics_fields
from penstock.ops.status import BackendStatus, BatchStatus, SinkStatus, Status
from penstock.process.repeated import Repeated


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    handlers, level = logging.getLogger().handlers, logging.getLogger().level
    yield
    structlog.reset_defaults()
    logging.getLogger().handlers = handlers
    logging.getLogger().setLevel(level)


def logged(form: Format | None = "logfmt", secrets: tuple[str, ...] = ()) -> io.StringIO:
    out = io.StringIO()
    with redirect_stderr(out):
        configure(form, secrets=secrets)
    return out


STATUS = Status(
    name="shop",
    version="1",
    uptime_seconds=12.5,
    health="ok",
    reasons=(),
    backends=(
        BackendStatus(name="a", connected=True, events=5, lag_bytes=7, confirmed="0/1"),
        BackendStatus(name="b", connected=True, events=6),
    ),
    sinks=(SinkStatus(name="s", published=9, acknowledged=8),),
    last_batch=BatchStatus(id=1, duration_ms=40),
)


def test_logfmt_is_one_line_of_pairs() -> None:
    out = logged()
    structlog.get_logger().info("two words", on=True, n=5)
    stamp, _, rest = out.getvalue().partition(" ")
    assert stamp.startswith("timestamp=") and stamp.endswith("Z")
    assert rest == 'level=info event="two words" on=true n=5\n'


def test_json_is_one_line_of_json() -> None:
    out = logged("json")
    structlog.get_logger().warning("a\nb", n=5)
    found = json.loads(out.getvalue())
    assert (found["event"], found["level"], found["n"]) == ("a\nb", "warning", 5)
    assert out.getvalue().count("\n") == 1


def test_where_there_is_no_terminal_the_default_is_logfmt() -> None:
    out = logged(None)
    structlog.get_logger().info("x")
    assert "event=x" in out.getvalue()


def test_an_exception_stays_on_its_line() -> None:
    out = logged()
    try:
        raise ValueError("hunter22")
    except ValueError:
        structlog.get_logger().exception("failed")
    assert out.getvalue().count("\n") == 1
    assert "ValueError" in out.getvalue()


@pytest.mark.parametrize("form", ["logfmt", "json", "console"])
def test_a_secret_does_not_print(form: Format) -> None:
    out = logged(form, ("hunter22",))
    try:
        raise ValueError("with hunter22 inside")
    except ValueError as error:
        structlog.get_logger().exception(
            "hunter22", a=["xhunter22x"], b={"hunter22": ("hunter22",)}, c=error
        )
    logging.getLogger("lib").warning("hunter22 %s", "hunter22")
    assert "hunter22" not in out.getvalue()
    assert "***" in out.getvalue()


def test_a_password_in_any_url_does_not_print() -> None:
    out = logged()
    structlog.get_logger().info("to postgresql://u:pa:ss@h/db and nats://:x@h")
    assert "postgresql://u:***@h/db and nats://:***@h" in out.getvalue()


def test_a_url_without_a_password_prints() -> None:
    text = "http://h:80/a@b and nats://u@h:4222"
    assert Blot(())(None, "", {"event": text}) == {"event": text}


def test_short_texts_are_no_secrets() -> None:
    assert Blot(("", "a"))(None, "", {"event": "banana"}) == {"event": "banana"}


def test_libraries_warnings_come_out_the_same_door() -> None:
    out = logged()
    logging.getLogger("lib").warning("careful %s", 5)
    logging.getLogger("lib").info("chatter")
    assert 'level=warning event="careful 5" logger=lib' in out.getvalue()
    assert "chatter" not in out.getvalue()


def test_the_metrics_line_sums() -> None:
    assert metrics_fields(STATUS) == {
        "uptime": 12,
        "health": "ok",
        "events": 11,
        "published": 9,
        "acknowledged": 8,
        "errors": 0,
        "connected": 1,
        "reconnects": 0,
        "lag_bytes": 7,
        "lag_seconds": 0,
        "buffered_events": 0,
        "confirmed": "0/1,-",
        "batch_ms": 40,
    }


def test_a_metrics_line_comes_after_every_interval_until_stopped() -> None:
    """One with a status that fails is left out."""
    out = logged()
    looks = [STATUS, None, STATUS]
    line: Repeated

    def look() -> None:
        if len(looks) == 1:
            line.close()
        structlog.get_logger("penstock").info(
            "METRICS", **metrics_fields(cast(Status, looks.pop()))
        )

    line = Repeated(look, interval=0.001, name="line")
    line.run()
    assert out.getvalue().count("event=METRICS uptime=12 health=ok") == 2
    assert "AttributeError" in out.getvalue()


def test_a_metrics_line_ends_with_its_service() -> None:
    line = Repeated(lambda: None, interval=1000, name="line")
    with line:
        assert line._thread.is_alive()
    line._thread.join(10)
    assert not line._thread.is_alive()
