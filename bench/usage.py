"""CPU seconds by process role, and the peak memory of our own processes together.

PSS is the proportional share; RSS counts what forked workers share once for each of them.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress

import psutil

__all__ = ["OURS", "Usage"]

OURS = ("service", "jvm", "planner", "workers")
_PLANNER = "python_streaming_source_runner"
# Makes the planner and the workers.
_FORKS = "penstock.spark.session.forkserver"


class Usage:
    """Watches the service's process tree, the wal senders and the NATS server.

    Processes that end are counted up to the last sample before their end (4 a second). What is
    watched costs what is measured: new processes are looked for every `find_every` seconds only,
    and PSS every `pss_every`, for which the kernel walks all pages of a process, and keeps the
    process from getting more meanwhile.
    """

    def __init__(
        self,
        *,
        service: int,
        postgres: int,
        nats: int,
        find_every: float = 1.0,
        pss_every: float = 2.0,
    ) -> None:
        self._find_every, self._find_at = find_every, 0.0
        self._pss_every, self._pss_at = pss_every, 0.0
        self._found: list[tuple[psutil.Process, str]] = []
        self.peak_pss = 0
        self.peak_rss = 0
        self._roots = {"service": service, "postgres": postgres, "nats": nats}
        self._cpu: dict[int, tuple[str, float]] = {}
        self._base: dict[int, float] = {}
        self._roles: dict[int, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begins to sample."""
        self._thread.start()

    def mark(self) -> None:
        """Counts CPU from here on."""
        self._find_at = 0.0
        self._sample()
        self._base = {pid: seconds for pid, (_, seconds) in self._cpu.items()}

    def stop(self) -> Mapping[str, float]:
        """CPU seconds since `mark`, by role."""
        self._stop.set()
        self._thread.join()
        self._sample()
        spent: dict[str, float] = defaultdict(float)
        for pid, (role, seconds) in self._cpu.items():
            spent[role] += seconds - self._base.get(pid, 0.0)
        return dict(spent)

    def _run(self) -> None:
        while not self._stop.wait(0.25):
            self._sample()

    def _sample(self) -> None:
        pss = rss = 0
        now = time.monotonic()
        look = now >= self._pss_at
        if look:
            self._pss_at = now + self._pss_every
        if now >= self._find_at:
            self._find_at = now + self._find_every
            self._found = list(self._find())
        for process, role in self._found:
            try:
                times = process.cpu_times()
                self._cpu[process.pid] = (role, times.user + times.system)
                if role in OURS:
                    rss += process.memory_info().rss
                    pss += process.memory_full_info().pss if look else 0
            except psutil.Error:
                continue
        self.peak_pss = max(self.peak_pss, pss)
        self.peak_rss = max(self.peak_rss, rss)

    def _find(self) -> Iterator[tuple[psutil.Process, str]]:
        """The processes under the roots, in one pass, and what they are."""
        children: dict[int, list[psutil.Process]] = defaultdict(list)
        roots: list[tuple[str, psutil.Process]] = []
        names = {pid: kind for kind, pid in self._roots.items()}
        for process in psutil.process_iter(["ppid"]):
            if process.pid in names:
                roots.append((names[process.pid], process))
            else:
                children[process.info["ppid"]].append(process)
        while roots:
            kind, process = roots.pop()
            roots += ((kind, child) for child in children[process.pid])
            with suppress(psutil.Error):
                yield process, self._role(kind, process)

    def _role(self, kind: str, process: psutil.Process) -> str:
        known = self._roles.get(process.pid)
        if known not in ("planner", "jvm", "wal sender", "nats-server"):
            known = self._roles[process.pid] = _role_of(kind, process)
        return known


def _role_of(kind: str, process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    if kind == "postgres":
        return "wal sender" if "walsender" in command else "postgres"
    if kind == "nats":
        return "nats-server"
    if process.name() == "java":
        return "jvm"
    if _PLANNER in command:
        return "planner"
    return "workers" if "pyspark" in command or _FORKS in command else "service"
