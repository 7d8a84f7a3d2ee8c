"""A host of its own process: `worker.py STORE JOURNAL PARTITIONS CHANGES [FORKS]`. Each call of an
observer goes to the journal, a line each, with the machine's monotonic time. FORKS: the processor
is made before the process is forked, and runs in each of so many children, which have journals of
their own."""

import json
import os
import signal
import sys
import threading
import time
from typing import Any

from penstock import Changes, CloseReason, Observer, PartitionContext, Processor

INTERVALS = {"renew": 0.7, "acquire": 0.5, "expire": 5.0, "poll": 0.3}


def main(store: str, journal: str, partitions: str, changes: str, forks: str = "0") -> None:
    file = -1

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

    settings = {"partitions": int(partitions), "changes": int(changes), "page": 10, "polled": True}
    processor = Processor(
        "memory", settings, leases=store, name="work", observer=Noting, threads=6, **INTERVALS
    )
    if int(forks):
        children = []
        for number in range(int(forks)):
            children.append(os.fork())
            if not children[-1]:
                journal = f"{journal.removesuffix('.log')}-{number}.log"
                break
        else:
            signal.signal(signal.SIGTERM, lambda *_: [os.kill(each, 15) for each in children])
            assert all(os.waitpid(each, 0)[1] == 0 for each in children)
            return
    file = os.open(journal, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    threading.Thread(target=pauses, daemon=True).start()
    note(what="start")
    processor.run()
    note(what="end")


def _number(place: str) -> int:
    cursor, _, ordinal = place.partition(":")
    return int(cursor.rpartition("-")[2]) * 10 + int(ordinal)


if __name__ == "__main__":
    main(*sys.argv[1:])
