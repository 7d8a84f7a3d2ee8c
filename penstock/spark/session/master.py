"""Spark's master as text: whether it is this machine, and how many tasks it runs at a time."""

import os
import re

_LOCAL = re.compile(r"local(\[(?P<threads>\*|\d+)(?P<failures>\s*,\s*\d+)?\])?")


def is_local(master: str) -> bool:
    """Whether tasks run in the driver's own JVM (`local`, `local[...]`), not on a cluster."""
    return master == "local" or master.startswith("local[")


def with_slots(master: str, slots: int) -> str:
    """A local master with room for `slots` tasks: one that stays open mostly waits, and needs no
    core of its own."""
    found = _LOCAL.fullmatch(master)
    if found is None:
        return master  # Spark reports what is wrong with it
    threads, failures = found["threads"] or "1", found["failures"] or ""
    cores = os.cpu_count() or 1 if threads == "*" else int(threads)
    return master if cores >= slots else f"local[{slots}{failures}]"
