"""What a change costs in countable work: `python tests/work/measure.py` prints it as JSON.

`--renew` writes the limits anew. Look at the difference before you commit it: it is the price of
what you did.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parents[2]))

from penstock.native import library
from tests.servers import Nats
from tests.work.counting import cost
from tests.work.scenarios import ROWS, encoding, scenarios, sending

LIMITS = Path(__file__).with_name("limits.json")

# Step -> "row" or "page" -> calls, instructions, memory.
Costs = Mapping[str, Mapping[str, Mapping[str, float]]]


def version() -> str:
    """Of the interpreter, as far as its byte code depends on it."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def measured(url: str, *, native: bool) -> Costs:
    """The work of each step, with the compiled kernels or without, in a process of its own.

    Raises LookupError when there are no kernels to measure.
    """
    environment = {**os.environ, "PENSTOCK_NATIVE": "on" if native else "off"}
    done = subprocess.run(
        [sys.executable, __file__, "--url", url],
        env=environment, check=True, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    if answer["native"] != native:
        raise LookupError("the native library is not built")
    costs: Costs = answer["work"]
    return costs


@click.command()
@click.option("--url", help="Of a nats-server with JetStream: measure here and now.")
@click.option("--renew", is_flag=True, help="Write the limits instead of printing.")
def main(*, url: str | None, renew: bool) -> None:
    """Prints the work of each step: for a row, and for a page apart from its rows."""
    if url is not None:
        encodings = {"encode": encoding(url), "convert": encoding(url, images="json")}
        made = {**scenarios(), **encodings, "send": sending(url)}
        work = {name: cost(make, rows=ROWS) for name, make in made.items()}
        print(json.dumps({"native": library() is not None, "work": work}))
        return
    with Nats() as nats:
        found = {
            "python": version(),
            "native": measured(nats.url, native=True),
            "plain": measured(nats.url, native=False),
        }
    text = json.dumps(found, indent=2) + "\n"
    if renew:
        LIMITS.write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
