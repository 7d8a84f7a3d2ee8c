"""Any change feed in plain Python, with a token in a file: run it again, and it goes on.

    python examples/iterate.py                                      # the memory feed
    PG_URL=postgresql://postgres@127.0.0.1:5432/shop python examples/iterate.py

With PG_URL: needs a publication `shop` in the database; the slot `iterate` is made. Ends after
SECONDS_TO_RUN seconds, or with Ctrl-C.
"""

import json
import os
import threading
from pathlib import Path
from typing import Any

import penstock


def load(path: Path) -> Any:
    """The saved token, or None."""
    return json.loads(path.read_text()) if path.exists() else None


def save(path: Path, token: Any) -> None:
    """Replaces the file at once: a crash leaves the old token or the new one."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(token))
    fresh.replace(path)


def open_stream(at: Any) -> penstock.Stream:
    """PostgreSQL where PG_URL says, else changes that are made up."""
    if "PG_URL" not in os.environ:
        return penstock.stream("memory", changes=20, partitions=3, at=at or "trim_horizon")
    return penstock.stream(
        "postgres", connection=os.environ["PG_URL"], slot="iterate", publication="shop", at=at
    )


def main(path: Path, seconds: float | None) -> None:
    with open_stream(load(path)) as stream:
        save(path, stream.token)  # where it begins, before the first record
        if seconds is not None:
            threading.Timer(seconds, stream.stop).start()
        for record in stream.follow(poll=0.2):
            event = record["meta"]["event"]
            print(event["type"], record["key"], record["new"], flush=True)
            save(path, stream.token)
            stream.acknowledge()  # only what is saved: PostgreSQL may discard its log up to here


if __name__ == "__main__":
    main(
        path=Path(os.environ.get("TOKEN", "token.json")),
        seconds=float(os.environ["SECONDS_TO_RUN"]) if "SECONDS_TO_RUN" in os.environ else None,
    )
