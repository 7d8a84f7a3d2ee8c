"""How each kind of fault is done, and mended: context managers, found by name."""

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import nats as nats_py
import psutil

from tests.chaos.proxy import Weather
from tests.chaos.world import STREAM, World
from tests.pipeline.running import send

Fault = Callable[[World, random.Random], AbstractContextManager[None]]

_WEATHER = {
    "cut": lambda chance: Weather(cut=chance.randint(0, 200)),
    "lost": lambda _: Weather(lost="all"),
    "deaf": lambda _: Weather(lost="answers"),
    "stall": lambda _: Weather(stalled=True),
    "slow": lambda chance: Weather(latency=chance.uniform(0.02, 0.3)),
    "narrow": lambda chance: Weather(rate=chance.randint(10_000, 200_000)),
    "reset": lambda _: Weather(refused=True),
}


def fault(name: str, world: World, chance: random.Random) -> AbstractContextManager[None]:
    """Begins on entering, is mended on leaving."""
    target, _, what = name.partition("-")
    if what in _WEATHER:
        return _bad_network(world, target, _WEATHER[what](chance))
    if what == "freeze":
        return _frozen(_victims(world, target, chance))
    return _FAULTS[name](world, chance)


@contextmanager
def _bad_network(world: World, link: str, weather: Weather) -> Iterator[None]:
    proxy = world.links[link]
    proxy.weather = weather
    if weather.refused:
        proxy.reset()
    yield
    proxy.weather = Weather()


def _victims(world: World, target: str, chance: random.Random) -> list[psutil.Process]:
    if target == "nats":
        return [psutil.Process(world.nats.pid)]
    if target == "postgres":
        top = psutil.Process(world.postgres.pid)
        return [top, *top.children(recursive=True)]
    found = world.processes(target)
    return [chance.choice(found)] if target == "worker" and found else found


@contextmanager
def _frozen(victims: list[psutil.Process]) -> Iterator[None]:
    send(victims, signal.SIGSTOP)
    try:
        yield
    finally:
        send(victims, signal.SIGCONT)


@contextmanager
def _pipeline_killed(world: World, _: random.Random) -> Iterator[None]:
    world.run.kill()
    yield
    world.run = world.start(world.run.file.parent)


@contextmanager
def _second_instance(world: World, _: random.Random) -> Iterator[None]:
    """Two for a while; then the first one dies, and the second is the pipeline."""
    second = world.start()
    yield
    world.run.kill()
    world.run = second


def _part_killed(target: str) -> Fault:
    @contextmanager
    def killed(world: World, chance: random.Random) -> Iterator[None]:
        send(_victims(world, target, chance), signal.SIGKILL)
        yield

    return killed


@contextmanager
def _nats_killed(world: World, _: random.Random) -> Iterator[None]:
    world.nats.kill()
    yield
    world.nats.start()


@contextmanager
def _nats_stopped(world: World, _: random.Random) -> Iterator[None]:
    world.nats.stop()
    yield
    world.nats.start()


@contextmanager
def _postgres_stopped(world: World, _: random.Random) -> Iterator[None]:
    world.postgres.stop("immediate")
    yield
    world.postgres.start()


@contextmanager
def _stream_full(world: World, _: random.Random) -> Iterator[None]:
    """A disk without room: the stream takes nothing more, and loses nothing either."""
    _limit_stream(world, full=True)
    yield
    _limit_stream(world, full=False)


def _limit_stream(world: World, *, full: bool) -> None:
    import asyncio

    async def limit() -> None:
        client = await nats_py.connect(world.nats.url)
        try:
            jetstream = client.jetstream(timeout=20)
            info = await jetstream.stream_info(STREAM)
            config = info.config
            config.discard = nats_py.js.api.DiscardPolicy.NEW
            config.max_bytes = max(info.state.bytes, 1) if full else -1
            await jetstream.update_stream(config)
        except nats_py.js.errors.NotFoundError:
            pass  # not made yet
        finally:
            await client.close()

    asyncio.run(limit())


_FAULTS: dict[str, Fault] = {
    "pipeline-kill": _pipeline_killed,
    "pipeline-second": _second_instance,
    "jvm-kill": _part_killed("jvm"),
    "worker-kill": _part_killed("worker"),
    "nats-kill": _nats_killed,
    "nats-stop": _nats_stopped,
    "nats-full": _stream_full,
    "postgres-stop": _postgres_stopped,
}
