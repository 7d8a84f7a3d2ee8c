"""A host of its own process: `worker.py STORE JOURNAL PARTITIONS CHANGES`. What it is called with
goes to the journal, a line each, with the machine's monotonic time."""

import json
import os
import sys
import threading
import time
from typing import Any

from penstock import Changes, CloseReason, Observer, PartitionContext, Processor

INTERVALS = {"renew": 0.7, "acquire": 0.5, "expire": 5.0, "poll": 0.3}


def main(store: str, journal: str, partitions: str, changes: str) -> None:
    file = os.open(journal, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def note(**fields: Any) -> None:
        os.write(file, json.dumps({"at": time.monotonic(), **fields}).encode() + b"\n")

    class Noting(Observer):
        def open(self, context: PartitionContext) -> None:
            note(what="open", partition=context.partition)

        def process(self, changes: Changes, context: PartitionContext) -> None:
            numbers = [_number(each["meta"]["sequence_number"]) for each in changes]
            time.sleep(0.03)
            note(what="process", partition=context.partition, numbers=numbers)

        def close(self, context: PartitionContext, reason: CloseReason) -> None:
            note(what="close", partition=context.partition, reason=reason, asked=context.revoked)

    def pauses() -> None:
        before = time.monotonic()
        while True:
            time.sleep(0.1)
            now = time.monotonic()
            if now - before > 1:
                note(what="pause", seconds=now - before)
            before = now

    threading.Thread(target=pauses, daemon=True).start()
    settings = {"partitions": int(partitions), "changes": int(changes), "page": 10, "polled": True}
    note(what="start")
    Processor(
        "memory", settings, leases=store, name="work", observer=Noting, threads=6, **INTERVALS
    ).run()
    note(what="end")


def _number(place: str) -> int:
    cursor, _, ordinal = place.partition(":")
    return int(cursor.rpartition("-")[2]) * 10 + int(ordinal)


if __name__ == "__main__":
    main(*sys.argv[1:])
