"""`penstock process`: the Processor as a service, as a process of its own."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.process import observer_of
from penstock.config import load_file
from penstock.model.errors import SettingsError
from penstock.processor.settings import ProcessorFile
from tests.servers.webhook import WebhookServer
from tests.waiting import until

OBSERVERS = """\
from penstock import Observer

class Writing(Observer):
    def process(self, changes, context):
        with open(f"{context.partition}.txt", "a") as file:
            for change in changes:
                print(change["meta"]["event"]["id"], file=file)

class Failing(Observer):
    def process(self, changes, context):
        raise ValueError("never")

number = 1
"""
FILE = """\
name: orders
state: {folder}/state
backends:
  - {{name: main, type: memory, partitions: 3, changes: 50}}
ops: {{port: 0}}
processor: {{renew: 300ms, acquire: 200ms, expire: 2s, poll: 200ms{more}}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "observers.py").write_text(OBSERVERS)
    (tmp_path / "orders.yaml").write_text(FILE.format(folder=tmp_path, more=""))
    return tmp_path


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(observer: str = "observers:Writing") -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "penstock", "process", "orders.yaml"]
        process = subprocess.Popen(
            [*command, "--observer", observer, "--log-format", "json"],
            cwd=folder,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for each in started:
        if each.poll() is None:
            each.kill()
        each.communicate()


def url_of(process: "subprocess.Popen[str]") -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if "url" in (found := json.loads(line)):
            return str(found["url"])
    raise AssertionError("the ops server does not listen")


def ask(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)


def test_it_processes_and_shows_it_and_ends_in_order(folder: Path, start: Start) -> None:
    process = start()
    url = url_of(process)

    def shown() -> tuple[Any, ...]:
        status = ask(f"{url}/status")
        (backend,) = status["backends"]
        of = (backend[name] for name in ("events", "partition_count", "leases", "unowned"))
        is_alone = backend["hosts"] == {backend["host"]: 3}
        return status["health"], status["ready"], *of, is_alone

    until(lambda: shown() == ("ok", True, 150, 3, 3, 0, True), problem=shown)
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        assert b'penstock_events_total{backend="main"} 150.0' in answer.read()
    browser = urllib.request.Request(f"{url}/", headers={"Accept": "text/html"})
    with urllib.request.urlopen(browser, timeout=60) as answer:  # the page, and what it follows
        assert answer.url == f"{url}/ui/" and b"<title>penstock</title>" in answer.read()
    with urllib.request.urlopen(f"{url}/events", timeout=60) as answer:
        assert answer.readline() == b"event: status\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0
    for number in range(3):
        assert len(set((folder / f"p{number}.txt").read_text().splitlines())) == 50
    listed = json.loads(_penstock(folder, "positions", "orders.yaml", "--json").stdout)
    assert [row["owner"] for row in listed] == [""] * 3
    assert _penstock(folder, "gaps", "orders.yaml").returncode == 0


def test_a_host_that_has_nothing_to_do_is_on_standby(start: Start) -> None:
    first, hosts = start(), [start() for _ in range(3)]
    urls = [url_of(each) for each in (first, *hosts)]

    def states() -> list[str]:
        return sorted(ask(f"{url}/health")["health"] for url in urls)

    until(lambda: states() == ["ok", "ok", "ok", "standby"])


def test_what_the_operator_must_act_on_is_an_exit_code(folder: Path, start: Start) -> None:
    (folder / "orders.yaml").write_text(FILE.format(folder=folder, more=", retries: 1"))
    process = start("observers:Failing")
    assert process.wait(120) == 1
    assert process.stderr is not None
    text = process.stderr.read()
    assert "ValueError" in text and "exhausted" in text and "Traceback" not in text


def test_a_webhook_hears_of_batches_that_are_set_aside(folder: Path, start: Start) -> None:
    file = FILE.format(folder=folder, more=", retries: 0, exhausted: dead-letter")
    with WebhookServer() as hook:
        notify = (
            f"ops: {{port: 0, notify: [{{url: '{hook.url}/verysecret', when: [dead-letter]}}]}}"
        )
        (folder / "orders.yaml").write_text(file.replace("ops: {port: 0}", notify))
        process = start("observers:Failing")
        url = url_of(process)
        found = until(lambda: hook.taken)
        assert "verysecret" not in json.dumps(ask(f"{url}/status"))
    assert (found[0]["kind"], found[0]["pipeline"]) == ("dead-letter", "orders")
    assert found[0]["lines"][0].startswith("backend main: its observer failed: ")


def test_check_looks_at_a_processors_file(folder: Path) -> None:
    found = json.loads(_penstock(folder, "check", "orders.yaml", "--json").stdout)
    assert {each["level"] for each in found} == {"ok"}
    subjects = [each["subject"] for each in found]
    assert "positions" in subjects and any(each.startswith("backend main") for each in subjects)
    assert "java" not in subjects


def _penstock(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("observer", "text"),
    [
        ("observers", "names no class"),
        ("observerz:Writing", "no module 'observerz'"),
        ("observers:Written", "no class 'Written'"),
        ("observers:number", "no class 'number'"),
    ],
)
def test_a_wrong_observer_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, observer: str, text: str
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "observers", raising=False)
    with pytest.raises(SettingsError, match=text):
        observer_of(observer)
    sys.modules.pop("observers", None)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("ops:", "sink: {type: memory}\nops:", "sink: unknown key"),
        ("renew: 300ms", "renew: 3s", "expire must be at least twice"),
        ("poll:", "pol:", "processor.pol: unknown key; did you mean 'poll'"),
        ("type: memory,", "type: memory, on_error: stop,", "on_error has no effect"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_line(
    folder: Path, old: str, new: str, text: str
) -> None:
    path = folder / "orders.yaml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(SettingsError, match=text):
        load_file(path, ProcessorFile)
