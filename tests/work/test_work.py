"""The work that a change costs does not grow: counted, not timed, so that any machine can tell."""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.servers import Nats
from tests.work.counting import cost
from tests.work.measure import LIMITS, Costs, measured, version
from tests.work.scenarios import ROWS, decoding

pytestmark = pytest.mark.slow

REMEDY = (
    "each change now costs more; if that is meant: python tests/work/measure.py --renew, and say "
    "in the commit what it buys"
)
# What may be added without renewing the limits. A row of `calls` is far below one call.
SLACK: dict[str, dict[str, Callable[[float], float]]] = {
    "row": {
        "calls": lambda limit: limit + 0.25,
        "instructions": lambda limit: limit * 1.02 + 1,
        "memory": lambda limit: limit * 1.1 + 64,
    },
    "page": {
        "calls": lambda limit: limit * 1.25 + 100,
        "instructions": lambda limit: limit * 1.25 + 2000,
    },
}


def excess(found: Costs, limits: Costs, *, same_python: bool) -> Iterator[str]:
    """What costs more than its limit. Another Python has other byte code: only calls compare."""
    for step, parts in limits.items():
        for part, kinds in SLACK.items():
            for kind, slack in kinds.items():
                if kind != "calls" and not same_python:
                    continue
                limit, value = parts[part][kind], found[step][part][kind]
                if value > slack(limit):
                    yield f"{step}: {kind} per {part}: {value}, and the limit is {limit}"


@pytest.fixture(scope="module")
def limits() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(LIMITS.read_text())
    return loaded


@pytest.mark.live
@pytest.mark.parametrize("kernels", [pytest.param("plain", marks=pytest.mark.thorough), "native"])
def test_a_change_costs_no_more_work_than_it_did(kernels: str, limits: dict[str, Any]) -> None:
    with Nats() as nats:
        try:
            found = measured(nats.url, native=kernels == "native")
        except LookupError as error:
            pytest.skip(str(error))
    over = list(excess(found, limits[kernels], same_python=limits["python"] == version()))
    assert not over, f"{over}: {REMEDY}"


def test_the_same_work_counts_the_same_again() -> None:
    assert cost(decoding, rows=ROWS // 4)["row"]["calls"] == pytest.approx(
        cost(decoding, rows=ROWS // 4)["row"]["calls"], abs=0.02
    )


def spoilt(extra: Callable[[int], None]) -> Callable[[int], Callable[[], object]]:
    """The decoding of pages, with something more for each of its rows."""

    def make(rows: int) -> Callable[[], object]:
        job = decoding(rows)

        def worse() -> object:
            for number in range(rows):
                extra(number)
            return job()

        return worse

    return make


@pytest.fixture(scope="module")
def honest() -> dict[str, dict[str, float]]:
    return cost(decoding, rows=ROWS // 4)


def judged(found: Any, honest: Any) -> list[str]:
    return list(excess({"decode": found}, {"decode": honest}, same_python=True))


def test_the_guard_passes_what_did_not_change(honest: dict[str, dict[str, float]]) -> None:
    assert judged(cost(decoding, rows=ROWS // 4), honest) == []


def test_the_guard_sees_one_more_call_for_a_row(honest: dict[str, dict[str, float]]) -> None:
    def extra(number: int) -> None:
        pass

    over = judged(cost(spoilt(extra), rows=ROWS // 4), honest)
    assert any(line.startswith("decode: calls per row") for line in over)


def test_the_guard_sees_a_loop_over_rows_that_calls_nothing(
    honest: dict[str, dict[str, float]],
) -> None:
    def make(rows: int) -> Callable[[], object]:
        job = decoding(rows)

        def worse() -> object:
            total = 0
            for number in range(rows):
                total += number * number % 7
            return job(), total

        return worse

    over = judged(cost(make, rows=ROWS // 4), honest)
    assert any(line.startswith("decode: instructions per row") for line in over)
    assert not any(line.startswith("decode: calls per row") for line in over)


def test_the_guard_sees_an_object_kept_for_each_row(honest: dict[str, dict[str, float]]) -> None:
    def make(rows: int) -> Callable[[], object]:
        job = decoding(rows)

        def worse() -> object:
            kept = [[number] * 200 for number in range(rows)]
            return job(), kept

        return worse

    over = judged(cost(make, rows=ROWS // 4), honest)
    assert any(line.startswith("decode: memory per row") for line in over)


def test_every_step_has_a_limit(limits: dict[str, Any]) -> None:
    assert set(limits) == {"python", "plain", "native"}
    steps = {
        "frame", "hand over", "decode", "change events", "late", "mirror", "encode", "convert",
        "send",
    }  # fmt: skip
    assert set(limits["plain"]) == set(limits["native"]) == steps
    assert sys.version_info >= tuple(map(int, limits["python"].split(".")))
