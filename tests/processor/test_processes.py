"""Hosts that are processes, with a real store: some are killed, and some are frozen.

A host that the machine itself left without its processor for long (`pause`) counts as frozen.
"""

import json
import signal
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processor.worker import INTERVALS
from tests.waiting import until

ROOT = Path(__file__).parents[2]


class Hosts:
    """The processes, and what they noted."""

    def __init__(self, folder: Path, store: str, partitions: int, changes: int) -> None:
        self.faulty: set[str] = set()  # killed, or frozen
        self.partitions, self.changes = partitions, changes
        self._folder, self._store, self._started = folder, store, 0
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, forks: int = 0) -> str:
        self._started += 1
        name = f"host{self._started}"
        command = [sys.executable, "-m", "tests.processor.worker", self._store]
        arguments = [str(self._folder / f"{name}.log"), str(self.partitions), str(self.changes)]
        arguments += [str(forks)]
        self._running[name] = subprocess.Popen(
            [*command, *arguments],
            cwd=ROOT,
            stderr=(self._folder / f"{name}.err").open("wb"),
        )
        return name

    def kill(self, name: str) -> None:
        self.faulty.add(name)
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def freeze(self, name: str) -> None:
        self.faulty.add(name)
        self._running[name].send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self._running[name].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """In order."""
        for each in self._running.values():
            each.send_signal(signal.SIGTERM)
        for name, each in self._running.items():
            assert each.wait(60) == 0, (self._folder / f"{name}.err").read_text()
        self._running.clear()

    def close(self) -> None:
        for each in self._running.values():
            each.kill()
            each.wait()

    def notes(self) -> list[dict[str, Any]]:
        """Of all hosts, in the order of their time."""
        found = [
            {"host": path.stem, **json.loads(line)}
            for path in self._folder.glob("*.log")
            for line in path.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]
        return sorted(found, key=lambda note: float(note["at"]))

    def processed(self) -> dict[str, set[int]]:
        found: dict[str, set[int]] = defaultdict(set)
        for note in self.notes():
            if note["what"] == "process":
                found[note["partition"]].update(note["numbers"])
        return found

    @property
    def done(self) -> float:
        """The share of the changes that were processed."""
        return sum(map(len, self.processed().values())) / (self.partitions * self.changes)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Callable[[str, int, int], Hosts]]:
    made: list[Hosts] = []

    def make(store: str, partitions: int, changes: int) -> Hosts:
        made.append(Hosts(tmp_path, store, partitions, changes))
        return made[-1]

    yield make
    for each in made:
        each.close()


def check(hosts: Hosts) -> None:
    """Each change was processed, in order in its partition; twice only where a host failed."""
    everything = set(range(hosts.changes))
    found = hosts.processed()
    assert len(found) == hosts.partitions
    assert all(numbers == everything for numbers in found.values())
    notes = hosts.notes()
    paused = {each["host"] for each in notes if each["what"] == "pause"}
    excused = hosts.faulty | paused
    by: dict[tuple[str, int], str] = {}
    reached: dict[str, int] = defaultdict(int)
    sessions: dict[tuple[str, str], int | None] = {}
    for note in notes:
        host, name = note["host"], note.get("partition", "")
        if note["what"] == "open":
            sessions[host, name] = None
        if note["what"] != "process":
            continue
        first, last = note["numbers"][0], note["numbers"][-1]
        before = sessions[host, name]
        assert before is None or first == before + 1, "out of order"
        assert first <= reached[name], "a hole"
        sessions[host, name], reached[name] = last, max(reached[name], last + 1)
        for number in note["numbers"]:
            earlier = by.setdefault((name, number), host)
            twice = earlier != host or first < reached[name] - len(note["numbers"])
            assert not twice or excused & {earlier, host}, f"{name} {number}: {earlier}, {host}"


def run(hosts: Hosts, count: int, faults: int) -> None:
    names = [hosts.start() for _ in range(count)]
    until(lambda: {note["host"] for note in hosts.notes() if note["what"] == "process"} >= {*names})
    for number in range(faults):
        hosts.kill(names[number])
        frozen = names[faults + number]
        hosts.freeze(frozen)
        hosts.start()
        time.sleep(INTERVALS["expire"] + 2 * INTERVALS["acquire"])
        hosts.thaw(frozen)
    until(lambda: hosts.done == 1.0)
    hosts.stop()
    check(hosts)


def test_every_change_is_processed_though_hosts_are_killed_and_frozen(
    hosts: Callable[[str, int, int], Hosts], database: Any
) -> None:
    run(hosts(database.url, 30, 1000), 3, faults=1)


@pytest.mark.process
def test_forks_of_a_processor_that_was_made_before_are_hosts_of_their_own(
    hosts: Callable[[str, int, int], Hosts], tmp_path: Path
) -> None:
    found = hosts(f"sqlite:///{tmp_path}/leases.db", 8, 500)
    found.start(forks=2)
    forks = {"host1-0", "host1-1"}
    until(lambda: {note["host"] for note in found.notes() if note["what"] == "open"} == forks)
    until(lambda: found.done == 1.0)
    found.stop()
    check(found)


@pytest.mark.thorough
def test_with_many_hosts_and_partitions_on_postgresql(
    hosts: Callable[[str, int, int], Hosts], database: Any
) -> None:
    run(hosts(database.url, 200, 600), 8, faults=3)


@pytest.mark.thorough
def test_with_many_hosts_and_partitions_on_etcd(
    hosts: Callable[[str, int, int], Hosts], etcd: Any
) -> None:
    run(hosts(f"{etcd.url}/{uuid.uuid4().hex}", 200, 600), 8, faults=3)
