"""Real servers for the tests: started once, a database and a stream name of its own for each.

Not installed is a skip with the reason; PENSTOCK_TEST_NO_SKIP=1 turns every skip into a failure.
"""

import gc
import multiprocessing
import os
import subprocess
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from functools import cache
from multiprocessing.context import BaseContext
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from penstock.model.errors import Unavailable
from penstock.sinks.jetstream.session import _idle, _lock
from tests.mongo import Shop, mongodb, shop_on
from tests.servers import Database, EmbeddedServer, Etcd, Nats, Postgres, etcd_program, postgres_bin
from tests.wire.cells import examples

# An example is slow only when the machine is. Every run tries the same ones, unless
# PENSTOCK_EXAMPLES asks for more. Before any test is imported, which takes what is set.
settings.register_profile(
    "patient",
    max_examples=examples(100),
    deadline=None,
    derandomize=examples(100) <= 100,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("patient")

# No pipeline of a test uses, or makes, the class archive in the user's cache.
os.environ["XDG_CACHE_HOME"] = os.devnull

# The tests kill processes, not machines: what was written survives without fsync.
FAST = {"fsync": False, "full_page_writes": False, "wal_sender_timeout": "10min"}


@pytest.fixture(scope="session")
def postgres_of() -> Iterator[Callable[[int], Postgres]]:
    """`postgres_of(version)`: with wal_level=logical; trust on loopback, superuser `postgres`."""
    with ExitStack() as stack:

        @cache
        def started(version: int) -> Postgres:
            return stack.enter_context(Postgres(version=version, settings=FAST))

        yield started


@pytest.fixture(scope="session")
def postgres(postgres_of: Callable[[int], Postgres]) -> Postgres:
    """PostgreSQL 16."""
    return postgres_of(16)


def need_etcd() -> None:
    """Skips where it is not installed."""
    try:
        etcd_program()
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def etcd() -> Iterator[Etcd]:
    """An etcd; each test takes a prefix of its own."""
    need_etcd()
    with Etcd(options={"unsafe-no-fsync": "true"}) as server:
        yield server


@pytest.fixture(scope="session", params=[15, pytest.param(16, marks=pytest.mark.thorough), 18])
def postgres_any(
    request: pytest.FixtureRequest, postgres_of: Callable[[int], Postgres]
) -> Postgres:
    """PostgreSQL 15 (Debian's), 16 and 18; 16, on which all other tests run, with --all only."""
    try:
        postgres_bin(request.param)
    except Unavailable as error:
        pytest.skip(str(error))
    return postgres_of(request.param)


@pytest.fixture
def database(postgres: Postgres) -> Iterator[Database]:
    """A fresh database on PostgreSQL 16: `.url`, `.name`, `.execute(sql, params) -> rows`."""
    with postgres.database() as fresh:
        yield fresh


@pytest.fixture
def database_any(postgres_any: Postgres) -> Iterator[Database]:
    """A fresh database on PostgreSQL 15, 16 and 18."""
    with postgres_any.database() as fresh:
        yield fresh


@pytest.fixture(scope="session")
def nats() -> Iterator[Nats]:
    """A nats-server with JetStream."""
    with Nats() as server:
        yield server


@pytest.fixture
def own_nats() -> Iterator[Callable[..., Nats]]:
    """`own_nats(config)`: a server that this test may kill."""
    servers: list[Nats] = []

    def make(config: dict[str, Any] | None = None) -> Nats:
        server = Nats(config=config)
        servers.append(server)
        server.__enter__()
        return server

    yield make
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def mongo() -> Iterator[str]:
    """The URL of a MongoDB: the stand-in, with fail points, or PENSTOCK_MONGODB_URL."""
    with mongodb() as url:
        yield url


@pytest.fixture
def shop(mongo: str) -> Iterator[Shop]:
    """A fresh database of MongoDB: `.url`, `.name`, `.db`, `.feed(**settings)`."""
    with shop_on(mongo) as fresh:
        yield fresh


@pytest.fixture
def staged(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """`type: staged` (tests/feeds/staged.py) is a feed, also in processes that are started."""
    folder = tmp_path_factory.mktemp("site")
    info = folder / "staged-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: staged\nVersion: 1.0\n")
    points = "[penstock.feeds]\nstaged = tests.feeds.staged:PLUGIN\n"
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(folder)
    path = (str(folder), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))


@pytest.fixture
def stream() -> Iterator[str]:
    """A stream name nobody else uses (its subjects should start with it, lower case or not)."""
    yield f"T{uuid.uuid4().hex[:12].upper()}"
    with _lock:  # no other test has use for the connections that sinks keep
        for idle in _idle.values():
            while idle:
                idle.pop().close()


_DURATIONS = Path(__file__).with_name("durations.txt")
_LONG = 5.0  # seconds from which a test is listed there
_SHORT = (0.03, 0.7)  # seconds that another takes, on average: without a server, and with one
_spent = Counter[str]()
# Files whose tests each start a Spark of their own, and share nothing.
_ALONE = (
    "tests/pipeline/",
    "tests/chaos/test_chaos.py",
    "tests/demo/test_demo.py",
    "tests/cli/test_service.py",
)
_TOGETHER = (
    "tests/pipeline/test_shared.py",
    "tests/pipeline/test_truth.py",
    "tests/pipeline/test_cluster.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, as tests/durations.txt has them, so that workers end together: tests with
    a Spark, which compute, and as much time of others at any time, which mostly wait. Some minutes
    of those come first, beside the test that makes the archive of Spark's classes."""
    for item in items:
        _mark(item)
    lines = _DURATIONS.read_text().splitlines() if _DURATIONS.exists() else ()
    listed = {
        nodeid: int(text) for text, _, nodeid in (line.strip().partition(" ") for line in lines)
    }
    spent = Counter[str]()
    for item in items:
        spent[_scope(item.nodeid)] += listed.get(
            item.nodeid, _SHORT[any(item.iter_markers("live"))]
        )
    computing = {_scope(item.nodeid) for item in items if item.get_closest_marker("spark")}
    places: dict[str, float] = {}
    for scopes, begun in ((computing, 0.0), ({*spent} - computing, -300.0)):
        total = sum(spent[scope] for scope in scopes)
        for scope in sorted(scopes, key=lambda scope: (-spent[scope], scope)):
            places[scope] = begun / total
            begun += spent[scope]
    places |= {scope: -1.0 for scope in places if "/test_class_archive.py" in scope}
    items.sort(key=lambda item: places[_scope(item.nodeid)])


@cache
def _started(function: Any) -> set[str]:
    return _starts(function, set())


def _starts(function: Any, seen: set[Any]) -> set[str]:
    """The marks of what the function starts: it names a server or a module that makes processes,
    or it names a function of the tests that does."""
    function = getattr(function, "__wrapped__", function)
    if not isinstance(function, FunctionType) or function in seen:
        return set()
    seen.add(function)
    if function.__module__.startswith("penstock."):
        return set()
    marks: set[str] = set()
    for name in _names(function.__code__):
        found = function.__globals__.get(name)
        if isinstance(found, type) and issubclass(found, EmbeddedServer):
            marks.add("live")
        elif isinstance(found, type) and getattr(found, "starts_spark", False):
            marks.add("spark")
        elif any(found is each for each in (multiprocessing, subprocess)) or isinstance(
            found, BaseContext
        ):
            marks.add("process")
        else:
            marks |= _starts(found, seen)
    return marks


def _names(code: CodeType) -> Iterator[str]:
    """What the code and the functions inside it name."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _mark(item: pytest.Item) -> None:
    """By its fixtures and by what it calls, so that no list of tests can be forgotten."""
    assert isinstance(item, pytest.Function)
    for fixture, mark in (("spark", "spark"), ("browser", "process")):
        if fixture in item.fixturenames:
            item.add_marker(mark)
    definitions = item._fixtureinfo.name2fixturedefs.values()
    functions = [item.function, *(each.func for found in definitions for each in found)]
    for mark in set[str]().union(*map(_started, functions)):
        item.add_marker(mark)


def pytest_configure(config: pytest.Config) -> None:
    """Before the tests are imported."""
    gc.disable()  # thousands of tests are made, and none is thrown away
    if "not live" in config.option.markexpr:
        # A parameter may ask for a server by name, which no mark shows.
        patch = pytest.MonkeyPatch()
        patch.setattr(EmbeddedServer, "start", lambda _: pytest.skip("needs a server"))
        config.add_cleanup(patch.undo)


def pytest_addoption(parser: pytest.Parser) -> None:
    """For scripts/test."""
    parser.addoption(
        "--keep-durations", action="store_true", help="a whole run writes tests/durations.txt"
    )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test's seconds are those of its fixtures, too."""
    _spent[report.nodeid] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes what each long test took."""
    config = session.config
    is_whole = config.args_source is not pytest.Config.ArgsSource.ARGS and not config.option.keyword
    if config.option.keep_durations and is_whole and not hasattr(config, "workerinput"):
        long = {nodeid: round(seconds) for nodeid, seconds in _spent.items() if seconds >= _LONG}
        lines = [f"{seconds:4} {nodeid}\n" for nodeid, seconds in sorted(long.items())]
        _DURATIONS.write_text("".join(lines))


def pytest_collection_finish() -> None:
    """From now on the collector leaves the tests alone: some call it often."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For several workers (scripts/test): what goes to one worker together."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _scope(nodeid)

    return Scheduler(config, log)


def _scope(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    if file.startswith(_ALONE) and not file.startswith(_TOGETHER):
        return nodeid
    return "tests/spark" if file.startswith("tests/spark/") else file


def _no_skips() -> bool:
    return os.environ.get("PENSTOCK_TEST_NO_SKIP") == "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A release run turns every skipped test into a failure."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and _no_skips():
        report.outcome = "failed"
        report.longrepr = f"skipped, but PENSTOCK_TEST_NO_SKIP=1: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that skips itself as a whole."""
    report = yield
    if report.skipped and _no_skips():
        report.outcome = "failed"
        report.longrepr = f"skipped, but PENSTOCK_TEST_NO_SKIP=1: {report.longrepr}"
    return report
