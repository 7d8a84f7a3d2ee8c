"""CPU seconds by process role, and the peak memory of our own processes together.

PSS is the proportional share; RSS counts what forked workers share once for each of them.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Mapping

import psutil

__all__ = ["OURS", "Usage"]

OURS = ("service", "jvm", "planner", "workers")
_PLANNER = "python_streaming_source_runner"
# Makes the planner and the workers.
_FORKS = "penstock.spark.session.forkserver"


class Usage:
    """Watches the service's process tree, the wal senders and the NATS server.

    Processes that end are counted up to the last sample before their end (4 a second). Memory is
    looked at every `memory_every` seconds.
    """

    def __init__(
        self, *, service: int, postgres: int, nats: int, memory_every: float = 0.0
    ) -> None:
        self._memory_every = memory_every
        self._memory_at = 0.0
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
        look = now >= self._memory_at
        if look:
            self._memory_at = now + self._memory_every
        for kind, root in self._roots.items():
            for process in _tree(root):
                try:
                    role = self._role(kind, process)
                    times = process.cpu_times()
                    self._cpu[process.pid] = (role, times.user + times.system)
                    if look and role in OURS:
                        memory = process.memory_full_info()
                        pss, rss = pss + memory.pss, rss + memory.rss
                except psutil.Error:
                    continue
        self.peak_pss = max(self.peak_pss, pss)
        self.peak_rss = max(self.peak_rss, rss)

    def _role(self, kind: str, process: psutil.Process) -> str:
        known = self._roles.get(process.pid)
        if known not in ("planner", "jvm", "wal sender", "nats-server"):
            known = self._roles[process.pid] = _role_of(kind, process)
        return known


def _tree(root: int) -> list[psutil.Process]:
    try:
        top = psutil.Process(root)
        return [top, *top.children(recursive=True)]
    except psutil.Error:
        return []


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
