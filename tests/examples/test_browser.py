"""The page in a browser without a window: a snapshot, the changes, and what it shows."""

import json
import os
import select
import shutil
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.consumer.mirror.conftest import world_of
from tests.consumer.mirror.world import World, until
from tests.servers import Database, Nats, free_port

__all__ = ["world_of"]

pytestmark = [pytest.mark.live, pytest.mark.process]

PAGE = Path(__file__).parents[2] / "examples" / "browser.html"
NODE = shutil.which("node")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)


@pytest.mark.skipif(NODE is None, reason="there is no node: apt-get install nodejs")
def test_the_page_keeps_the_digits_of_large_numbers() -> None:
    body = """{"id":1234567890123456789,"s":"a \\"1234567890123456789, \\\\",
        "n":[1.5,-0.12345678901234567],
        "small":-9007199254740}"""
    read = (
        "const PARTS" + PAGE.read_text().partition("const PARTS")[2].partition("async function")[0]
    )
    script = f"{read}; console.log(JSON.stringify(read({{headers: '', data: {json.dumps(body)}}})))"
    found = subprocess.run([str(NODE), "-e", script], capture_output=True, check=True, timeout=60)
    assert json.loads(found.stdout) == {
        "id": "1234567890123456789", "s": 'a "1234567890123456789, \\',
        "n": [1.5, "-0.12345678901234567"], "small": -9007199254740,
    }  # fmt: skip


@pytest.mark.skipif(BROWSER is None, reason="there is no chromium: apt-get install chromium")
@pytest.mark.parametrize("layout", ["penstock", "bridge"])
@pytest.mark.parametrize("messages", ["change", "batch"])
def test_the_page_has_the_rows_that_were_there_and_the_changes(
    messages: str,
    layout: str,
    database: Database,
    own_nats: Callable[..., Nats],
    world_of: Callable[..., World],
    tmp_path: Path,
) -> None:
    port = free_port()
    nats = own_nats({"websocket": {"host": "127.0.0.1", "port": port, "no_tls": True}})
    database.execute(
        "CREATE TABLE people (id bigint PRIMARY KEY, name text, large text);"
        "ALTER TABLE people ALTER COLUMN large SET STORAGE EXTERNAL;"
        "INSERT INTO people SELECT n, 'n' || n, repeat('x', 3000) || n"
        " FROM generate_series(1, 30) n;"
        "INSERT INTO people SELECT 1234567890123456780 + n, 'say \"1234567890123456789, \\', ''"
        " FROM generate_series(1, 9) n"
    )
    world_of(nats=nats, encoding="json", messages=messages, layout=layout).start()
    with closing(
        Browser(tmp_path, f"{PAGE.as_uri()}?ws=ws://127.0.0.1:{port}&table=people")
    ) as page:
        database.execute("INSERT INTO people VALUES (100, 'first', 'l')")
        until(lambda: "live" in page.status or "people: " not in page.status)
        for statement in (
            "UPDATE people SET name = 'other' WHERE id % 3 = 0",
            "UPDATE people SET id = id + 1000 WHERE id < 5; DELETE FROM people WHERE id = 7",
            "INSERT INTO people VALUES (101, 'last', NULL)",
            "UPDATE people SET large = '' WHERE id = 101",
        ):
            database.execute(statement)
        wanted = sorted(
            list(map(str, row)) for row in database.execute("SELECT id, name, large FROM people")
        )
        try:
            until(lambda: page.rows == wanted)
        except AssertionError:
            pytest.fail(f"{page.status}: {len(page.rows)} rows of {len(wanted)}")


class Browser:
    """A browser without a window that shows one page; asked over its debugging pipe."""

    def __init__(self, folder: Path, url: str) -> None:
        (into, self._into), (self._out, out) = os.pipe(), os.pipe()
        options = (
            "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run"
            f" --remote-debugging-pipe --user-data-dir={folder}/browser about:blank"
        )
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {BROWSER} {options} 3<&{into} 4>&{out}"],
            pass_fds=(into, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(into)
        os.close(out)
        self._waits = select.poll()  # a process may have more files than `select` takes
        self._waits.register(self._out, select.POLLIN)
        self._asked, self._read = 0, b""
        target = self._ask("Target.createTarget", url=url)["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]

    _session: str | None = None

    @property
    def status(self) -> str:
        return str(self._value("document.querySelector('#status')?.textContent ?? ''"))

    @property
    def rows(self) -> list[list[str]]:
        cells = "[...row.querySelectorAll('td')].map((cell) => cell.textContent)"
        rows = f"[...document.querySelectorAll('#rows tr')].map((row) => {cells})"
        found = self._value(f"{rows}.filter((row) => row.length)")
        return sorted(found)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(30)
        os.close(self._into)
        os.close(self._out)

    def _value(self, expression: str) -> Any:
        found = self._ask("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"].get("value")

    def _ask(self, method: str, **params: Any) -> Any:
        self._asked += 1
        asked = {"id": self._asked, "method": method, "params": params}
        if self._session:
            asked["sessionId"] = self._session
        os.write(self._into, json.dumps(asked).encode() + b"\0")
        while True:
            while b"\0" not in self._read:
                assert self._waits.poll(60_000), f"no answer to {method}"
                self._read += os.read(self._out, 1 << 16)
            line, _, self._read = self._read.partition(b"\0")
            answer = json.loads(line)
            if answer.get("id") == self._asked:
                assert "result" in answer, answer
                return answer["result"]
