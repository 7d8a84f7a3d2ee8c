"""How each kind of fault is done, and mended: context managers, found by name."""

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import nats as nats_py
import psutil
import psycopg

from tests.chaos.proxy import Weather
from tests.chaos.world import STREAM, World
from tests.pipeline.running import send
from tests.servers import Nats, Postgres

Fault = Callable[[World, random.Random], AbstractContextManager[None]]

_WEATHER = {
    "cut": lambda chance: Weather(cut=chance.randint(0, 200)),
    "lost": lambda _: Weather(lost="all"),
    "deaf": lambda _: Weather(lost="answers"),
    "stall": lambda _: Weather(stalled=True),
    "slow": lambda chance: Weather(latency=chance.uniform(0.02, 0.3)),
    "narrow": lambda chance: Weather(rate=chance.randint(10_000, 200_000)),
    "reset": lambda _: Weather(refused=True),
    "unanswered": lambda _: Weather(unanswered=True),
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
    if target in world.servers:
        top = psutil.Process(world.servers[target].pid)
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


def _server_ended(name: str, end: Callable[[Any], None]) -> Fault:
    @contextmanager
    def ended(world: World, _: random.Random) -> Iterator[None]:
        end(world.servers[name])
        yield
        world.servers[name].start()

    return ended


def _crash(server: Postgres) -> None:
    server.stop("immediate")


@contextmanager
def _terminated(world: World, _: random.Random) -> Iterator[None]:
    """The target ends the connections of the sink."""
    psycopg.connect(world.servers["target"].url).execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'penstock sink'"
    )
    yield


@contextmanager
def _stream_full(world: World, _: random.Random) -> Iterator[None]:
    """A disk without room: the stream takes nothing more, and loses nothing either."""
    _limit_stream(world, full=True)
    yield
    _limit_stream(world, full=False)


def _limit_stream(world: World, *, full: bool) -> None:
    import asyncio

    async def limit() -> None:
        client = await nats_py.connect(world.servers["nats"].url)
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
    "nats-kill": _server_ended("nats", Nats.kill),
    "nats-stop": _server_ended("nats", Nats.stop),
    "nats-full": _stream_full,
    "postgres-stop": _server_ended("postgres", _crash),
    "target-stop": _server_ended("target", _crash),
    "target-terminate": _terminated,
}
