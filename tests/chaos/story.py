"""One run of the suite: rounds of faults under load, and after each round the comparison."""

import asyncio
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats as nats_py
import ormsgpack

from tests.chaos.faults import fault
from tests.chaos.plan import CONSOLIDATE, Step, kinds, plan
from tests.chaos.shops import TableAudit, shops
from tests.chaos.world import FLOWING, SETTLED, STREAM, World, world
from tests.pipeline.truth import Truth, assert_same


@dataclass(slots=True)
class Outcome:
    """What a run did."""

    rounds: int = 0
    faults: int = 0
    changes: int = 0


def chaos(
    *,
    seed: int,
    seconds: float,
    pipeline: str = "default",
    only: tuple[str, ...] = (),
    large: int = 5000,
    say: Callable[[str], None] = print,
) -> Outcome:
    """Runs about `seconds` of faults; `large`: rows of the large transactions that go into tables.
    Raises AssertionError when the stream, or a table, is not what was committed; the folder with
    the logs is kept then."""
    outcome, folder = Outcome(), Path(tempfile.mkdtemp(prefix="penstock-chaos-"))
    begun = time.monotonic()

    def tell(number: int, what: object) -> None:
        say(f"{time.monotonic() - begun:7.1f} s  round {number}: {what}")

    with _opened(folder, seed, pipeline, large) as (here, audit):
        audit.wait_for_flow()
        for number, round_ in enumerate(plan(seed, seconds, only or kinds(pipeline)), 1):
            for step in round_:
                tell(number, step)
                _strike(here, step)
                outcome.faults += len(step.faults)
                if step.calm:
                    audit.wait_for_flow()
                    time.sleep(step.calm)
            with here.load.paused():
                outcome.changes += audit.compare()
            outcome.rounds = number
            tell(number, f"exact, {outcome.changes} changes")
        here.load.stop()
        outcome.changes += audit.compare()
        assert here.run.stop() == 0, "a graceful stop after all that"
        assert audit.compare() == 0
    shutil.rmtree(folder)
    return outcome


@contextmanager
def _opened(
    folder: Path, seed: int, pipeline: str, large: int
) -> Iterator[tuple[World, "StreamAudit | TableAudit"]]:
    if pipeline == CONSOLIDATE:
        with shops(folder, seed, large) as (here, audit):
            yield here, audit
    else:
        with world(folder, seed, pipeline) as (here, truth):
            yield here, StreamAudit(here, truth)


def _strike(here: World, step: Step) -> None:
    chance = random.Random(step.chance)
    with ExitStack() as stack:
        for name in step.faults:
            stack.enter_context(fault(name, here, chance))
        time.sleep(step.hold)


class StreamAudit:
    """Compares the stream with the truth, each time from where it was."""

    def __init__(self, here: World, truth: Truth) -> None:
        self._here, self._truth = here, truth
        self._sequence = 0  # of the last message compared

    def wait_for_flow(self) -> None:
        """Until something new is stored."""
        before = self._stored()
        self._here.until(lambda: self._stored() > before, FLOWING, "nothing flows")

    def compare(self) -> int:
        """Everything committed since the last time is in the stream once, in order, as it was, and
        nothing else; how many changes that were."""
        facts = self._truth.read()
        wanted = self._sequence + len(facts)
        if facts:
            self._here.until(
                lambda: self._stored() >= wanted, SETTLED, f"not all {len(facts)} arrive"
            )
        bodies = asyncio.run(_bodies(self._here.servers["nats"].url, self._sequence))
        self._sequence += len(bodies)
        try:
            assert_same(facts, bodies)
        except AssertionError as error:
            raise AssertionError(self._here.problem(str(error))) from None
        return len(facts)

    def _stored(self) -> int:
        return asyncio.run(_last_sequence(self._here.servers["nats"].url))


async def _last_sequence(url: str) -> int:
    client = await nats_py.connect(url)
    try:
        return int((await client.jetstream(timeout=20).stream_info(STREAM)).state.last_seq)
    except nats_py.js.errors.NotFoundError:
        return 0
    finally:
        await client.close()


async def _bodies(url: str, after: int) -> list[dict[str, Any]]:
    """What is stored behind a sequence, in order, read by a client that shares no code with us."""
    client = await nats_py.connect(url)
    try:
        jetstream = client.jetstream(timeout=20)
        last = (await jetstream.stream_info(STREAM)).state.last_seq
        if last <= after:
            return []
        subscription = await jetstream.subscribe(
            ">",
            stream=STREAM,
            ordered_consumer=True,
            pending_msgs_limit=-1,
            pending_bytes_limit=-1,
            config=nats_py.js.api.ConsumerConfig(
                deliver_policy=nats_py.js.api.DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=after + 1,
            ),
        )
        found = [await subscription.next_msg(timeout=30) for _ in range(last - after)]
        return [ormsgpack.unpackb(message.data) for message in found]
    finally:
        await client.close()
