"""Open dashboards: `python -m bench.viewers URL COUNT` asks what their pages ask, until killed.

Of a browser itself nothing is measured: it runs on another machine.
"""

import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, repeat

_POLL = 3.0  # seconds, as in the page


@contextmanager
def viewers(url: str, count: int) -> Iterator[None]:
    """So many dashboards are open meanwhile."""
    if not count:
        yield
        return
    process = subprocess.Popen([sys.executable, "-m", "bench.viewers", url, str(count)])
    try:
        yield
        if process.poll() is not None:
            raise RuntimeError("a dashboard lost its service")
    finally:
        process.kill()
        process.wait()


def _answer(url: str) -> None:
    with urllib.request.urlopen(url, timeout=10) as answer:
        while answer.read1(2**16):
            pass


def _poll(url: str) -> None:
    while True:
        for path in ("actions", "history?range=15m"):
            _answer(f"{url}/{path}")
        time.sleep(_POLL)


def _ready(url: str) -> None:
    while True:
        try:
            return _answer(url)
        except OSError:
            time.sleep(0.2)


if __name__ == "__main__":
    url, count = sys.argv[1], int(sys.argv[2])
    _ready(url)
    tasks = chain(repeat((_answer, f"{url}/events"), count), repeat((_poll, url), count))
    threads = [threading.Thread(target=task, args=(place,), daemon=True) for task, place in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
