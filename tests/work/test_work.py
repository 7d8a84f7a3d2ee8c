"""The work that a change costs does not grow: counted, not timed, so that any machine can tell."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.servers import Nats
from tests.work.counting import cost
from tests.work.scenarios import ROWS, decoding

pytestmark = pytest.mark.slow

# Step -> calls for a row, and for a page apart from its rows. A new limit needs a reason in the
# commit that sets it: what it buys.
Calls = Mapping[str, tuple[float, float]]
LIMITS: Mapping[str, Calls] = {
    "native": {
        "frame": (0.0, 301), "serve": (14.0, 182), "hand over": (39.0, 5), "decode": (0.0, 293),
        "late": (0.0, 290), "change events": (33.0, 159), "encode": (0.0, 30),
        "convert": (0.0, 84), "send": (0.18, 80), "mirror": (31.0, 3700),
        "follow": (273.0, 2945), "page": (159.0, 35),
    },
    "plain": {
        "frame": (1.54, 295), "serve": (14.0, 182), "hand over": (36.0, 5), "decode": (39.14, 362),
        "late": (0.0, 290), "change events": (178.0, 147), "encode": (0.0, 506),
        "convert": (34.0, 347), "send": (13.64, 140), "mirror": (31.0, 3700),
        "follow": (315.0, 2328), "page": (1103.0, 35),
    },
}  # fmt: skip


def excess(found: Calls, limits: Calls) -> list[str]:
    """What costs more than its limit."""
    return [
        f"{step}: {found[step]} calls for a row and a page, and the limits are {limits[step]}"
        for step in limits
        if found[step][0] > limits[step][0] + 0.25 or found[step][1] > limits[step][1] * 1.25 + 100
    ]


@pytest.mark.parametrize("kernels", [pytest.param("plain", marks=pytest.mark.thorough), "native"])
def test_a_change_costs_no_more_calls_than_it_did(kernels: str, nats: Nats) -> None:
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("measure.py"), nats.url],
        env={**os.environ, "PENSTOCK_NATIVE": "on" if kernels == "native" else "off"},
        check=True, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    if answer["native"] != (kernels == "native"):
        pytest.skip("the native library is not built")
    assert set(answer["calls"]) == set(LIMITS[kernels])
    assert excess(answer["calls"], LIMITS[kernels]) == []


def test_one_more_call_for_a_row_is_seen_and_no_other() -> None:
    def spoilt(rows: int) -> Callable[[], object]:
        job = decoding(rows)
        return lambda: ([extra(number) for number in range(rows)], job())

    def extra(number: int) -> None:
        pass

    honest = {"decode": cost(decoding, rows=ROWS // 4)}
    assert excess({"decode": cost(decoding, rows=ROWS // 4)}, honest) == []
    assert len(excess({"decode": cost(spoilt, rows=ROWS // 4)}, honest)) == 1
