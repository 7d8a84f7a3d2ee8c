"""The dashboard in a browser: it shows what the ops server says, and acts on it."""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import structlog

from penstock.config import Pipeline, build_pipeline
from penstock.model.settings import Secret
from penstock.ops.board import Board
from penstock.ops.history import History
from penstock.ops.logs import configure, last_lines
from penstock.ops.partitions import SHOWN
from penstock.ops.reports import (
    GapReport,
    PartitionReport,
    QueryReport,
    SinkReport,
    SnapshotsReport,
    SourceReport,
    TableStatus,
)
from penstock.ops.requests import Access, Endpoint, OpsRequest
from penstock.ops.respond import ANSWERS, PAGES, Asked, status_endpoints
from penstock.ops.server import OpsServer
from penstock.ops.status import assess
from penstock.reading.partition_reports import summed
from penstock.service.action_api import ActionApi
from penstock.service.actions import ACTIONS, Actions, Operated
from penstock.service.operations import EventStream
from penstock.service.pauses import Pauses
from tests.servers import Nats
from tests.service.test_messages import store
from tests.waiting import until

UI = files("penstock.ops").joinpath("ui")
# Of each action the screen that has its button.
BUTTONS = {
    "pause": "sources", "resume": "sources", "retry": "sources", "mend": "sources",
    "shutdown": "sources", "snapshot": "tables", "suspend-table": "tables",
    "resume-table": "tables", "cancel-snapshot": "snapshots", "replay": "letters",
    "check": "configuration",
}  # fmt: skip
AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text()


class Served:
    """An ops server of a pipeline with one memory feed; its board has what a test posts."""

    def __init__(self, folder: Path, sink: Any = None, **access: Any) -> None:
        self.pipeline: Pipeline = build_pipeline(
            {"name": "shop", "backends": [{"name": "a", "type": "memory"}],
             "sink": sink or {"type": "memory"}, "state": str(folder)},
            name="test", secrets=[],
        )  # fmt: skip
        self.board, self.history = Board("/nowhere"), History()
        self.access = Access(**access)
        self.actions = Actions()
        events = EventStream(self.status, last_lines())
        api = ActionApi(self.actions, self.access, self.operated)
        self.of_processor = [
            *status_endpoints(self.asked), Endpoint("/events", "GET", events.answer), *PAGES,
        ]  # fmt: skip
        self.endpoints = [*self.of_processor, *api.endpoints()]
        self.server = OpsServer(port=0, access=self.access, endpoints=self.endpoints)
        self.post(0)

    def operated(self, by: str) -> Operated:
        return Operated(pipeline=self.pipeline, by=by, restart=lambda _: None, stop=lambda: None)

    def post(self, events: int, **query: Any) -> None:
        self.board.post("a", QueryReport(begun=True, **query))
        self.board.post("a", SourceReport(connected=True, events=events, lag_seconds=0.5))
        self.board.post("memory", SinkReport(connected=True, acknowledged=events))
        self.history.record(self.board.snapshot(), time.time())

    def status(self, partitions: int | None = SHOWN) -> Any:
        return assess(
            self.board.snapshot(), name="shop", version="1", backends=["a"],
            started=self.board.started, now=time.monotonic(), partitions=partitions,
        )  # fmt: skip

    def asked(self, request: OpsRequest) -> Asked:
        status = self.status(None if request.query.get("partitions") == "all" else SHOWN)
        return Asked(
            request=request, status=status, access=self.access, stop=list,
            history=self.history, endpoints=self.endpoints,
        )  # fmt: skip


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    configure("json")
    found = Served(tmp_path, token=Secret("key"))
    with found.server:
        yield found
    found.actions.close()
    structlog.reset_defaults()


@pytest.fixture
def page(served: Served, opened: Callable[..., Any]) -> Any:
    return live(opened(f"{served.server.url}/ui/"))


def live(page: Any) -> Any:
    page.wait_for_selector("body[data-connection=live]")
    return page


def test_a_processor_shows_no_buttons(served: Served, opened: Callable[..., Any]) -> None:
    served.endpoints = served.of_processor
    with OpsServer(port=0, access=Access(), endpoints=served.endpoints) as server:
        page = live(opened(f"{server.url}/ui/#/sources"))
        page.wait_for_selector("body[data-kind=processor]")
        assert page.locator("[data-action]:visible").count() == 0
        assert page.locator("#backends tbody tr:visible").count() == 1


def value(page: Any, name: str) -> str:
    return str(page.inner_text(f"[data-value={name}]"))


def test_the_overview_follows_the_status(served: Served, page: Any) -> None:
    assert value(page, "health") == "ok"
    served.post(1234)
    until(lambda: value(page, "read") == "1,234" and value(page, "stored") == "1,234")
    assert value(page, "lag") == "0.5 s"
    assert value(page, "verdict") == "All is well"
    assert page.get_attribute("link[rel=icon]", "href") == "ok.svg"
    chart = page.locator("figure[data-chart=throughput] canvas")
    until(lambda: served.post(1234) or chart.is_visible())  # a rate is of two seconds
    served.post(1234, blocked="the slot is gone")
    until(lambda: value(page, "health") == "unhealthy")
    assert value(page, "verdict") == "Changes do not flow as they should"
    assert page.get_attribute("link[rel=icon]", "href") == "bad.svg"
    assert page.locator("#reasons [data-action=retry]").count() == 1
    assert "stands still" in str(page.get_attribute("#way svg", "aria-label"))
    assert "the slot is gone" in page.inner_text("#reasons")
    assert "penstock retry" in page.inner_text("#reasons")
    assert page.get_attribute("#reasons a", "href").endswith("/#a-backend-that-fails")
    served.post(1234, blocked="the slot is gone (make one) [postgres.slot-missing]")
    page.wait_for_selector("#reasons a[href$='/reference/errors/#postgresslot-missing']")


def test_each_screen_is_shown_alone(page: Any) -> None:
    names = re.findall(r'data-screen="([a-z]+)"', UI.joinpath("index.html").read_text())
    assert len(names) == 9
    names.remove("messages")  # this sink has none
    names.remove("map")
    assert page.locator("nav a:visible").count() == 7
    for name in names:
        page.click(f"nav a[href='#/{name}']")
        page.wait_for_selector(f"section[data-screen={name}]", state="visible")
        assert page.locator("section[data-screen]:visible").count() == 1
    assert page.get_attribute("nav a[aria-current]", "href") == f"#/{names[-1]}"


def test_each_key_has_its_value_default_and_meaning(page: Any) -> None:
    page.click("nav a[href='#/configuration']")
    page.wait_for_selector("#keys tbody tr")
    assert "PySpark " in page.inner_text("#versions")
    rows = page.locator("#keys tbody tr")
    is_set = rows.count()
    page.check("[name=defaults]")
    until(lambda: rows.count() > 2 * is_set)
    assert "30m" in page.inner_text("#keys") and "1800" not in page.inner_text("#keys")
    page.fill("[name=keys]", "ops.port")
    until(lambda: rows.count() == 1)
    key, value, default, meaning = rows.locator("td").all_inner_texts()
    assert (key, value, default) == ("ops.port", "9090", "9090")
    assert meaning.startswith("The port")


def test_a_pause_is_asked_for_confirmed_and_shown(served: Served, page: Any) -> None:
    page.click("nav a[href='#/sources']")
    pause = "#backends [data-action=pause]"
    page.click(pause)
    page.click("dialog button[value=confirm]")
    until(lambda: "needs a token" in page.inner_text("#message"))
    page.fill("[name=token]", "key")
    page.press("[name=token]", "Enter")
    page.click(pause)
    page.click("dialog button:not([value=confirm])")
    assert not served.actions.recent
    page.click(pause)
    page.click("dialog button[value=confirm]")
    until(lambda: page.inner_text("#message") == "pause is done: a: paused")
    with Pauses(served.pipeline) as pauses:
        served.post(0, paused=pauses.all()["a"])
    page.wait_for_selector("#backends [data-action=resume]")
    assert "paused since" in page.inner_text("#backends")
    page.click("nav a[href='#/events']")
    until(lambda: "pause" in page.inner_text("#actions"))
    until(lambda: "an operator acts" in page.inner_text("#log"))


def test_each_action_asks_for_the_token(served: Served, page: Any) -> None:
    board = served.board
    board.post("a/t", TableStatus(backend="a", table="t", state="suspended"))
    board.post("a/p0", PartitionReport(state="reading"))
    board.post("a/p0", GapReport(stale=True, counts={"trimmed": 1}))
    board.post("a", SnapshotsReport(current=[{
        "snapshot_id": "t", "table": "t", "state": "running", "waiting": None, "ranges": 4,
        "done": 1, "chunks": 1, "rows": 10, "bytes": 100, "bytes_per_second": 10,
        "seconds_left": 5.0,
    }]))  # fmt: skip

    def press(action: str) -> None:
        screen = BUTTONS[action]
        page.click(f"nav a[href='#/{screen}']")
        section = page.locator(f"section[data-screen={screen}]")
        for field in section.locator("form input[required]").all():
            field.fill("t")
        section.locator(f"[data-action={action}]").first.click()
        if page.locator("dialog[open]").count():
            page.click("dialog button[value=confirm]")

    def ended() -> int:
        return sum(each["state"] != "running" for each in served.actions.recent)

    for action in BUTTONS:
        press(action)
        refusal = f"{action}: writing needs a token"
        until(lambda refusal=refusal: page.inner_text("#message").startswith(refusal))
    assert not served.actions.recent
    page.fill("[name=token]", "key")
    page.press("[name=token]", "Enter")
    for number, action in enumerate(BUTTONS, 1):
        press(action)
        until(lambda number=number: ended() == number)
    assert {each["action"] for each in served.actions.recent} == {*ACTIONS}


def test_a_service_that_goes_is_said_and_comes_back_by_itself(served: Served, page: Any) -> None:
    port = served.server.port
    served.server.close()
    page.wait_for_selector("body[data-connection=lost]")
    assert page.inner_text("[data-value=health]").startswith("lost since")
    assert page.title().startswith("shop: lost since")
    again = Served(served.pipeline.state)
    again.server.port = port
    with again.server:
        page.wait_for_selector("body[data-connection=live]")
        until(lambda: "lost" not in page.inner_text("[data-value=health]") + page.title())


def test_messages_are_followed_with_the_token(
    tmp_path: Path, opened: Callable[..., Any], nats: Nats, stream: str
) -> None:
    sink = {"type": "jetstream", "url": nats.url, "stream": stream}
    store(nats, stream, 1, 2)
    with Served(tmp_path, sink, token=Secret("key")).server as server:
        page = live(opened(f"{server.url}/ui/"))
        page.click("nav a[href='#/messages']")
        until(lambda: "enter the token" in page.inner_text("#message"))
        page.fill("[name=token]", "key")
        page.press("[name=token]", "Enter")
        rows = page.locator("#messages tbody tr")
        until(lambda: rows.count() == 2)
        store(nats, stream, 3, data={"id": "<img src=x>"})
        until(lambda: "<img src=x>" in rows.first.inner_text())
        assert rows.first.locator("td").nth(1).inner_text() == "INSERT"
        assert "id" in rows.first.locator(".column").inner_text()
        assert page.inner_text("#left-out") == "0 left out"
        page.fill("#filter [name=key]", "id=2")
        page.press("#filter [name=key]", "Tab")
        until(lambda: rows.count() == 1)
        page.click("nav a[href='#/overview']")


def test_names_are_text_and_tables_are_searched(served: Served, page: Any) -> None:
    for number in range(3):
        name = f"public.<b>t{number}</b>"
        table = TableStatus(backend="a", table=name, state="suspended", error="<img src=x>")
        served.board.post(f"a/{name}", table)
    page.click("nav a[href='#/tables']")
    page.wait_for_selector("#tables tbody tr:nth-child(3)")
    assert "<b>t1</b>" in page.inner_text("#tables")
    page.fill("[name=tables]", "t1")
    until(lambda: page.locator("#tables tbody tr").count() == 1)
    assert page.url.endswith("#/tables?find=t1")
    page.click("nav a[href='#/overview']")
    until(lambda: value(page, "suspended") == "3")


def test_a_thousand_partitions_are_sorted_and_filtered(served: Served, page: Any) -> None:
    rows = {
        f"p{number}": PartitionReport(state="reading", lag_seconds=float(number * 7 % 100))
        for number in range(1000)
    }
    for name, row in rows.items():
        served.board.post(f"a/{name}", row)
    served.board.post("a", summed(rows, {}))
    page.click("nav a[href='#/sources']")
    until(lambda: page.inner_text("#partitions-left").startswith("20 of 1,000 partitions"))
    page.fill("[name=partitions]", "p77")
    shown = page.locator("#partitions tbody tr")
    until(lambda: shown.count() == 11)
    lags = [float(each.split("\t")[4].split()[0]) for each in shown.all_inner_texts()]
    assert lags == sorted(
        (rows[f"p77{last}"].lag_seconds for last in ("", *range(10))), reverse=True
    )


def test_tables_that_are_files_have_a_column_for_them(served: Served, page: Any) -> None:
    plain = TableStatus(backend="a", table="public.items", state="live")
    served.board.post("a/public.items", plain)
    page.click("nav a[href='#/tables']")
    until(lambda: "public.items" in page.inner_text("#tables"))
    assert "Files" not in page.inner_text("#tables")
    size = {"version": 12, "files": 1203, "bytes": 5 << 20, "last_commit": "2026-11-27T01:00:00Z"}
    served.board.post("a/public.items", TableStatus(**plain.named, **size))
    until(lambda: "1,203 files, 5 MiB, version 12 of " in page.inner_text("#tables"))
    assert "Files" in page.inner_text("#tables thead")


def test_hosts_gaps_and_last_snapshots_are_shown(served: Served, page: Any) -> None:
    board = served.board
    board.post("a", SourceReport(connected=True, host="h1", hosts={"h1": 3, "h2": 2}, unowned=1))
    gap = {"at": "2026-11-27T01:02:03", "cause": "trimmed", "detail": "hours are gone"}
    board.post("a/p0", GapReport(stale=True, counts={"trimmed": 1}, gaps=[gap]))
    last = {"snapshot_id": "snap-1", "state": "done", "rows": 12345, "at": "2026-11-27T01:00:00"}
    board.post("a", SnapshotsReport(last={"public.items": last}))
    board.post("a/public.items", TableStatus(backend="a", table="public.items", state="following"))
    page.click("nav a[href='#/sources']")
    rows = page.locator("#hosts tbody tr")
    until(lambda: [each.split("\t")[:3] for each in rows.all_inner_texts()] == [
        ["a", "h1 (this one)", "3"], ["a", "h2", "2"], ["a", "none", "1"],
    ])  # fmt: skip
    page.click("nav a[href='#/tables']")
    until(lambda: "12,345 rows" in page.inner_text("#tables"))
    page.click("nav a[href='#/snapshots']")
    until(lambda: "snap-1" in page.inner_text("#taken"))
    page.click("nav a[href='#/events']")
    until(lambda: "hours are gone" in page.inner_text("#gaps"))
    served.history.notice(served.status(), time.time())
    until(lambda: "of public.items: done" in page.inner_text("#marks"))
    assert "partition p0 is stale" in page.inner_text("#marks")


def test_a_day_of_history_is_drawn(served: Served, page: Any) -> None:
    day, now = History(), time.time()
    for minute in range(24 * 60 + 1, -1, -1):
        day.record(served.board.snapshot(), now - minute * 60)
    assert len(day.shown("24h")["times"]) == 24 * 60
    served.history = day
    figure = page.locator("figure[data-chart=lag]")
    figure.locator("canvas").wait_for()
    figure.locator("summary").click()
    page.click("[data-range='24h']")
    times = figure.locator("table tr td:first-child")
    until(lambda: times.count() == 20)
    first, second = (
        time.strptime(each[-11:], "%I:%M:%S %p") for each in times.all_inner_texts()[:2]
    )
    assert (time.mktime(first) - time.mktime(second)) % 86400 == 60


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
def test_each_screen_fits_the_window_and_is_accessible(
    served: Served, opened: Callable[..., Any], scheme: str, width: int
) -> None:
    viewport = {"width": width, "height": 800}
    page = live(opened(f"{served.server.url}/ui/", color_scheme=scheme, viewport=viewport))
    served.board.post("a/t", TableStatus(backend="a", table="t", state="suspended", error="x"))
    page.wait_for_selector("figure canvas")
    page.evaluate(AXE)
    for link in page.locator("nav a:visible").all():
        link.click()
        page.wait_for_selector(f"section[data-screen={link.get_attribute('href')[2:]}]")
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(wide) <= 0, page.url
        found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
        assert [each for each in found if each["impact"] in ("serious", "critical")] == [], page.url


def test_its_files_load_nothing_from_elsewhere_and_are_small() -> None:
    own = 0
    for each in UI.iterdir():
        text = each.read_text()
        if not each.name.startswith("uplot"):
            assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), each.name
            own += text.count("\n")
    assert own < 1900


def test_the_library_of_charts_is_the_one_that_was_taken() -> None:
    for line in UI.joinpath("uplot.sha256").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256(UI.joinpath(name).read_bytes()).hexdigest() == digest


def test_every_action_of_the_page_is_one(served: Served) -> None:
    text = "".join(UI.joinpath(name).read_text() for name in ("index.html", "app.js"))
    used = set(re.findall(r'data-action="([a-z-]+)"', text))
    used |= set(re.findall(r'(?:\[|button\()"[A-Z][A-Za-z ]+", "([a-z-]+)", ', text))
    assert used <= set(ACTIONS)
    assert set(ACTIONS) - used == set()
    assert json.loads(
        ANSWERS["/history"][2](served.asked(OpsRequest(method="GET", path="/history"))).body
    )
