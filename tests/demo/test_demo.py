"""`penstock demo` as a user runs it: the whole way, its verdict, and nothing left behind."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from penstock.demo.run import Options, run
from penstock.demo.sources.postgres import shop
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(600)]

Demo = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary folder that PostgreSQL's user may enter too; pytest's own are private."""
    folder = Path(tempfile.mkdtemp(prefix="demo-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def demo(temporary: Path) -> Iterator[Demo]:
    """Starts `penstock demo` with its temporary files in `temporary`."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "demo", *options],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait(180)


def read_until(process: subprocess.Popen[str], wanted: str) -> str:
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if wanted in line:
            return said
    raise AssertionError(f"{wanted!r} was never said:\n{said}")


def gone(folder: Path) -> bool:
    """Whether nothing runs from, and nothing is left in, a folder."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if not list(folder.glob("penstock-*")) and not _running_in(folder):
            return True
        time.sleep(0.1)
    return False


def _running_in(folder: Path) -> list[str]:
    commands = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it ended while we looked
            continue
    return [command for command in commands if f"{folder}/" in command]


@pytest.mark.thorough  # the next one, too, ends with a verdict and by Ctrl-C
def test_ctrl_c_ends_the_shop_and_the_verdict_is_still_given(demo: Demo, temporary: Path) -> None:
    process = demo("--seconds", "600", "--rate", "300")
    read_until(process, "streaming:")
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=180)
    assert "VERDICT: ok" in said
    assert "latency" in said
    assert process.returncode == 0
    assert gone(temporary)


def test_keep_leaves_everything_up_and_says_how_to_connect(demo: Demo, temporary: Path) -> None:
    process = demo("--seconds", "2", "--rate", "200", "--keep", "--quiet")
    said = read_until(process, "pipeline.yaml")
    assert said.startswith("VERDICT: ok")
    psql, url = _found(r"(\S+/psql) (postgresql://\S+)", said)
    [(nats, stream)] = re.findall(r"penstock tail --url (\S+) --stream (\S+)", said)
    [ops] = re.findall(r"(http://\S+)/ui/, the dashboard", said)
    insert = "INSERT INTO carts (id, contents) VALUES (999, '[]')"
    subprocess.run([psql, url, "-c", insert], check=True, capture_output=True)
    tail = [sys.executable, "-m", "penstock", "tail", "--url", nats, "--stream", stream, "--json"]
    with subprocess.Popen(tail, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert any((json.loads(line)["key"] or {}).get("id") == 999 for line in reader.stdout)
        reader.send_signal(signal.SIGINT)
    status = json.load(urllib.request.urlopen(f"{ops}/status"))
    assert status["name"] == "shop"
    until(
        lambda: (
            sum(
                each["saved"]
                for each in json.load(urllib.request.urlopen(f"{ops}/status"))["backends"]
            )
            > 5
        )
    )
    [(variables, file)] = re.findall(r"(PG_URL=\S+ NATS_URL=\S+) penstock check (\S+)", said)
    named = dict(each.split("=", 1) for each in variables.split())
    for command, expected in (("check", "0 errors"), ("positions", "shop")):
        done = subprocess.run(
            [sys.executable, "-m", "penstock", command, file],
            env=os.environ | named,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert expected in done.stdout
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 0
    assert gone(temporary)


@pytest.mark.parametrize(
    ("source", "stand_in"),
    [
        ("mongodb", "SecantusDB"),
        # tests/demo/test_servers.py starts its stand-in.
        pytest.param("dynamodb", "moto", marks=pytest.mark.thorough),
    ],
)
def test_another_source_says_that_it_is_a_stand_in_and_gets_its_verdict(
    demo: Demo, temporary: Path, source: str, stand_in: str
) -> None:
    process = demo("--source", source, "--seconds", "3", "--rate", "100", "--quiet")
    said, _ = process.communicate(timeout=300)
    first, *others = said.splitlines()
    assert stand_in in first
    assert "stand-in" in first
    assert others[-1].startswith("VERDICT: ok"), said
    assert process.returncode == 0
    assert gone(temporary)


def test_a_terminated_demo_leaves_nothing_behind(demo: Demo, temporary: Path) -> None:
    process = demo("--seconds", "600")
    read_until(process, "starting Spark")
    process.terminate()
    assert process.wait(60) == 143
    assert gone(temporary)


@pytest.mark.thorough
def test_what_differs_is_printed_and_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    # The tables are made to lie: the copy has a row that they do not.
    lie = f"{shop.SELECTS['customers']} ORDER BY id OFFSET 1"
    monkeypatch.setitem(shop.SELECTS, "customers", lie)
    out = StringIO()
    console = Console(file=out)
    assert run(Options(seconds=2, rate=200, quiet=True), console) == 1
    said = out.getvalue()
    assert "differs: customers (1,) is only in the copy" in said
    assert "VERDICT: FAILED" in said
    [log] = re.findall(r"the pipeline's log: (\S+)", said)
    assert Path(log).exists()
    shutil.rmtree(Path(log).parent)


def _found(pattern: str, text: str) -> tuple[str, str]:
    [(first, second)] = re.findall(pattern, text)
    return first, second


@pytest.mark.parametrize("into", ["--consolidate", "--lake"])
def test_two_shops_flow_into_one_place(demo: Demo, temporary: Path, into: str) -> None:
    process = demo(into, "--seconds", "2", "--rate", "300")
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert ("DuckDB counts the rows" in said) == (into == "--lake")
    assert said.count("equal  ") == 10
    assert "VERDICT: ok." in said
    assert gone(temporary)
