"""Prints the calls of each step for a row, and for a page apart from its rows:
`python tests/work/measure.py nats://127.0.0.1:4222`, a nats-server with JetStream. With
PENSTOCK_NATIVE=off without the compiled kernels.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from penstock.native import library
from tests.work.counting import cost
from tests.work.scenarios import ROWS, encoding, paging, scenarios, sending

if __name__ == "__main__":
    url = sys.argv[1]
    encodings = {"encode": encoding(url), "convert": encoding(url, images="json")}
    made = {**scenarios(), **encodings, "send": sending(url), "page": paging(url)}
    calls = {name: cost(make, rows=ROWS) for name, make in made.items()}
    print(json.dumps({"native": library() is not None, "calls": calls}))
