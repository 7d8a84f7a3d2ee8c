"""CPU seconds by process role, and the peak memory of penstock's processes together.

PSS is the proportional share; RSS counts what forked workers share once for each of them.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import psutil

OURS = ("service", "jvm", "reader", "workers")
# The name of a fork of the server; without one, the end of its command.
_READER = "source_runner"
# Makes the reader process and the workers.
_FORKS = "penstock.spark.session.forks.server"


class Cpu(NamedTuple):
    """CPU seconds, or the cores that were busy on average."""

    user: float
    system: float

    @property
    def total(self) -> float:
        """Of both kinds."""
        return self.user + self.system

    def over(self, seconds: float) -> "Cpu":
        """These CPU seconds as cores that were busy on average."""
        return Cpu(self.user / seconds, self.system / seconds)


class Usage:
    """Watches the service's process tree, the source's server (a wal sender apart) and the NATS
    server.

    Processes that end are counted up to the last sample before their end (4 a second). Watching
    costs what is measured: new processes are looked for every `find_every` seconds only, and PSS is
    read every `pss_every`, because the kernel walks all pages of a process for it, and the process
    cannot allocate meanwhile.
    """

    def __init__(
        self,
        *,
        service: int,
        source: int,
        nats: int,
        find_every: float = 1.0,
        pss_every: float = 2.0,
    ) -> None:
        self._find_every, self._find_at = find_every, 0.0
        self._pss_every, self._pss_at = pss_every, 0.0
        self._found: list[tuple[psutil.Process, str]] = []
        self.peak_pss = 0
        self.peak_rss = 0
        self.peak_threads = 0  # of our Python processes together
        # When the first process of each role began, in seconds of the epoch.
        self.begun: dict[str, float] = {}
        self._roots = {"service": service, "source": source, "nats": nats}
        self._cpu: dict[int, tuple[str, Cpu]] = {}
        self._base: dict[int, Cpu] = {}
        self._machine = _busy()
        # Since `mark`: CPU seconds of all processes of this machine, its cores, and when it was.
        self.machine = 0.0
        self.cores = psutil.cpu_count() or 1
        self.marked_at = time.time()
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
        self._base = {pid: used for pid, (_, used) in self._cpu.items()}
        self._machine, self.marked_at = _busy(), time.time()

    def stop(self) -> Mapping[str, Cpu]:
        """CPU seconds since `mark`, by role."""
        self._stop.set()
        self._thread.join()
        self._sample()
        self.machine = _busy() - self._machine
        spent: dict[str, Cpu] = defaultdict(lambda: Cpu(0.0, 0.0))
        for pid, (role, used) in self._cpu.items():
            base, known = self._base.get(pid, Cpu(0.0, 0.0)), spent[role]
            spent[role] = Cpu(
                known.user + used.user - base.user, known.system + used.system - base.system
            )
        return dict(spent)

    def _run(self) -> None:
        while not self._stop.wait(0.25):
            self._sample()

    def _sample(self) -> None:
        pss = rss = threads = 0
        now = time.monotonic()
        look = now >= self._pss_at
        if look:
            self._pss_at = now + self._pss_every
        if now >= self._find_at:
            self._find_at = now + self._find_every
            self._found = list(self._find())
        for process, role in self._found:
            try:
                first = self.begun.get(role, process.create_time())
                self.begun[role] = min(first, process.create_time())
                times = process.cpu_times()
                self._cpu[process.pid] = (role, Cpu(times.user, times.system))
                if role in OURS:
                    rss += process.memory_info().rss
                    if look:
                        pss += process.memory_full_info().pss
                        threads += process.num_threads() if role != "jvm" else 0
            except psutil.Error:
                continue
        self.peak_pss = max(self.peak_pss, pss)
        self.peak_rss = max(self.peak_rss, rss)
        self.peak_threads = max(self.peak_threads, threads)

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
        # A fork gets its name a moment later; a process that has ended has no command any more.
        if known is None or (known in ("service", "workers", "source") and process.cmdline()):
            known = self._roles[process.pid] = role_of(kind, process)
        return known


def _busy() -> float:
    """CPU seconds that this machine has spent on processes and interrupts since its start."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def role_of(kind: str, process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    if kind == "source":
        return "wal sender" if "walsender" in command else "source"
    if kind == "nats":
        return "nats-server"
    if process.name() == "java":
        return "jvm"
    if process.name() == _READER or (_READER in command and "launcher.py" not in command):
        return "reader"
    return "workers" if "pyspark" in command or _FORKS in command else "service"
