"""Random changes of rows, columns, keys, names and publications, and a mirror that is killed:
whenever the writer pauses, the mirror equals the published tables.

What is done follows from a seed alone and is one script, which a failure prints and leaves in a
file: a line is a transaction, or what happens to the processes (`--pipeline stop`). Lines may be
taken out of it and the rest be played again.

    PENSTOCK_MIRROR_SEED=7          another seed
    PENSTOCK_MIRROR_SECONDS=3600    longer, in each world
    PENSTOCK_MIRROR_KINDS=keys,odd  these kinds of `recipes.py` only
    PENSTOCK_MIRROR_SCRIPT=FILE     this script
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest

from penstock.model.errors import Unavailable
from penstock.nats.services import asked
from tests.consumer.mirror.recipes import KINDS, PRELUDE, Kind
from tests.consumer.mirror.texts import differences
from tests.consumer.mirror.world import World
from tests.servers import Database, Nats, Postgres, postgres_bin
from tests.waiting import until

pytestmark = pytest.mark.timeout(7200)

_LOOK = 0.5  # seconds between looks at the catalogue; 30 for users
_EQUAL = 100.0  # seconds in which the mirror must be equal
# `penstock mirror`, with shorter waits for tables that cannot be loaded now.
_MIRROR = """
import sys
from penstock.consumer.mirror import bootstrap, replica
replica._REFUSED, replica._LOOK, bootstrap._SILENCE = 3.0, 0.5, 8.0
from penstock.cli import main
main()
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """A world. Layout `debezium` is JSON only."""

    target: str
    layout: str
    sink: dict[str, Any]
    version: int

    def __str__(self) -> str:
        return f"{self.target}-{self.layout}-{self.sink['encoding']}-{self.version}"


SETTINGS = (
    Setting("sqlite", "penstock", {"encoding": "json", "messages": "batch"}, 16),
    Setting("sqlite", "debezium", {"encoding": "json"}, 15),
    Setting("postgres", "penstock", {"encoding": "msgpack"}, 15),
    Setting("postgres", "debezium", {"encoding": "json"}, 18),
    Setting("sqlite", "penstock", {"encoding": "msgpack"}, 18),
    Setting("postgres", "penstock", {"encoding": "json", "messages": "batch"}, 16),
)


def script(seed: int, kinds: list[Kind]) -> Iterator[str]:
    """Lines without an end, round by round; each round ends with a comparison."""
    random = Random(seed)
    yield from (" ".join(each.create.split()) for each in kinds)
    yield "--pipeline start"
    while True:
        yield "--mirror start"
        yield from _writes(random, kinds, 12)
        chosen = random.choice(kinds)
        recipe = _filled(random, *random.choice(chosen.recipes))
        who = random.choice(["", "", "pipeline", "mirror", "both", "restart", "lose"])
        yield from (f"--{each} stop" for each in _processes(who))
        for number, line in enumerate(recipe):
            if number and who == "" and random.random() < 0.4:
                # Until a snapshot is asked for, the mirror may differ.
                is_told = any(each.startswith("--snapshot") for each in recipe[number:])
                yield "--look" if is_told else random.choice(["--look", "--equal"])
            if line.startswith("--snapshot"):
                yield from (f"--{each} start" for each in _processes(who))
            yield line
            yield from _writes(random, [chosen], random.choice([0, 0, 1, 3]))
        if who == "lose":
            yield "--lose"
        elif who == "restart":
            yield from ("--pipeline stop", "--pipeline start")
        yield from (f"--{each} start" for each in _processes(who))
        yield from _writes(random, kinds, random.choice([0, 12]))
        if random.random() < 0.4:
            yield from ("--mirror kill", "--mirror start")
        yield "--equal"


def _processes(who: str) -> tuple[str, ...]:
    return {"both": ("mirror", "pipeline"), "pipeline": ("pipeline",), "mirror": ("mirror",)}.get(
        who, ()
    )


def _writes(random: Random, kinds: list[Kind], count: int) -> Iterator[str]:
    """Transactions, some of which are rolled back."""
    for _ in range(count):
        statements = [
            line
            for _ in range(random.choice([1, 1, 2, 4]))
            for line in _filled(random, random.choice(random.choice(kinds).writes))
        ]
        back = random.random() < 0.1
        yield "; ".join(("BEGIN", *statements, "ROLLBACK") if back else statements)


def _filled(random: Random, *lines: str) -> list[str]:
    number, new = str(random.randint(0, 5000)), str(random.randint(5000, 9000))
    return [re.sub(r"\bNEW\b", new, re.sub("(?<![A-Z])K(?![A-Z])", number, line)) for line in lines]


class Player:
    """Plays lines in a world, and keeps them."""

    def __init__(self, world: World, target: str, folder: Path) -> None:
        self.world, self.target = world, target
        self.lines: list[str] = []
        self._errors = folder / "mirror.err"
        self._process: subprocess.Popen[bytes] | None = None
        self._connection = psycopg.connect(world.database.url, autocommit=True)
        self._connection.execute(PRELUDE.encode())

    def play(self, line: str) -> None:
        self.lines.append(line)
        if not line.startswith("--"):
            try:
                self._connection.execute(line.encode())
            except psycopg.Error as error:  # such as a key that is there
                self._connection.execute("ROLLBACK")
                self.lines.append(f"--failed: {error.diag.message_primary}")
            return
        verb, _, of = line.removeprefix("--").partition(" ")
        if verb != "failed:":
            getattr(self, f"_{verb}")(of)

    def close(self) -> None:
        self._mirror("kill")
        self._connection.close()

    def _pipeline(self, of: str) -> None:
        if of == "stop":
            self.world.stop_pump()
            self.world.stop_service()
        elif not self.world.connection.info:
            self.world.start()
        elif self.world.pump is None:
            self.world.start_service()
            self.world.start_pump()

    def _mirror(self, of: str) -> None:
        if of == "start" and self._process is None:
            command = [sys.executable, "-c", _MIRROR, "mirror", self.world.nats.url, "--quiet"]
            with self._errors.open("wb") as errors:
                self._process = subprocess.Popen(
                    [*command, "--to", self.target], stdout=errors, stderr=errors
                )
        elif of != "start" and self._process is not None:
            self._process.send_signal(9 if of == "kill" else 15)
            self._process.wait(60)
            self._process = None

    def _lose(self, _: str) -> None:
        self.world.published()
        self.world.api.purge("CDC", ">")

    def _look(self, _: str) -> None:
        time.sleep(2 * _LOOK)

    def _snapshot(self, of: str) -> None:
        def is_answered() -> bool:
            try:
                subject, options = f"snapshot.request.{of}", b'{"reload": true}'
                answer = asked(self.world.connection, subject, options, 30).payload
            except Unavailable:
                return False
            assert b"error" not in answer, answer
            return True

        until(is_answered)

    def _equal(self, _: str) -> None:
        self.world.published()
        deadline, found = time.monotonic() + _EQUAL, ["not compared"]
        while found and time.monotonic() < deadline:
            assert self._process is not None, "no mirror runs"
            if self._process.poll() is not None:
                if "is the pipeline shop running?" not in self._errors.read_text():
                    found = ["the mirror ended"]
                    break
                self._mirror("kill")  # there was none to load a table from
                self._mirror("start")
            time.sleep(0.2)
            try:
                found = differences(self.world.database.url, self.target)
            except Exception as error:
                found = [repr(error)]
        if found:
            raise AssertionError("\n".join((*found[:20], *self._warnings())))

    def _warnings(self) -> list[str]:
        """What the mirror wrote, each line once."""
        lines = re.sub(r"(?m)^20\S+ \S+ ", "", self._errors.read_text()).splitlines()
        return [*dict.fromkeys(lines)][-20:]


def play(player: Player, lines: Iterator[str], *, seconds: float, note: str, kept: Path) -> None:
    """Until the first end of a round after so many seconds."""
    deadline = time.monotonic() + seconds
    try:
        for line in lines:
            player.play(line)
            if line == "--equal" and time.monotonic() > deadline:
                return
    except BaseException as error:
        kept.write_text("\n".join(player.lines))
        print(kept.read_text())
        raise AssertionError(f"{note}; the script is in {kept}") from error
    finally:
        player.close()


@pytest.fixture
def postgres(postgres_of: Callable[[int], Postgres], setting: Setting) -> Postgres:
    try:
        postgres_bin(setting.version)
    except Unavailable:
        return postgres_of(16)
    return postgres_of(setting.version)


def _kinds(setting: Setting, seed: int) -> list[str]:
    """Half of them in each world, all of them in two."""
    if chosen := os.environ.get("PENSTOCK_MIRROR_KINDS"):
        return chosen.split(",")
    names = [*KINDS]
    number = SETTINGS.index(setting)
    Random(seed + number // 2).shuffle(names)
    return names[number % 2 :: 2]


def _can(kind: Kind, postgres: Postgres) -> bool:
    known = "SELECT count(*) FROM pg_available_extensions WHERE name = %s"
    has = not kind.extension or postgres.execute(known, [kind.extension])[0][0]
    return bool(has) and kind.since <= postgres.version


@pytest.mark.parametrize(
    "setting",
    [*SETTINGS[:4], *(pytest.param(each, marks=pytest.mark.thorough) for each in SETTINGS[4:])],
    ids=str,
)
def test_a_mirror_equals_its_source_whenever_the_writer_pauses(
    setting: Setting,
    postgres: Postgres,
    database: Database,
    own_nats: Callable[..., Nats],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.service.tables._LOOK", _LOOK)
    seed = int(os.environ.get("PENSTOCK_MIRROR_SEED", "1"))
    seconds = float(os.environ.get("PENSTOCK_MIRROR_SECONDS", "12"))
    names = [name for name in _kinds(setting, seed) if _can(KINDS[name], postgres)]
    lines = script(seed, [KINDS[name] for name in names])
    if given := os.environ.get("PENSTOCK_MIRROR_SCRIPT"):
        lines, seconds = iter(Path(given).read_text().splitlines()), 1e9
    with postgres.database() as copies:
        target = copies.url if setting.target == "postgres" else f"sqlite:///{tmp_path}/mirror.db"
        world = World(
            database, own_nats(), tmp_path, {"max_concurrent": 8},
            layout=setting.layout, **setting.sink,
        )  # fmt: skip
        try:
            play(
                Player(world, target, tmp_path), lines, seconds=seconds,
                note=f"{setting}, seed {seed}, {','.join(names)}", kept=tmp_path / "script.sql",
            )  # fmt: skip
        finally:
            world.close()


@pytest.mark.parametrize("setting", SETTINGS[::3], ids=str)
def test_each_recipe_can_come_twice(setting: Setting, postgres: Postgres) -> None:
    for name in (name for name in KINDS if _can(KINDS[name], postgres)):
        with postgres.database() as fresh, psycopg.connect(fresh.url, autocommit=True) as writer:
            writer.execute(PRELUDE.encode())
            writer.execute(KINDS[name].create.encode())
            for line in _filled(Random(1), *KINDS[name].writes):
                with suppress(psycopg.errors.UniqueViolation):
                    writer.execute(line.encode())
            for recipe in KINDS[name].recipes * 2:
                for line in _filled(Random(1), *recipe):
                    try:
                        writer.execute(line.encode())
                    except psycopg.Error as error:
                        raise AssertionError(f"{name}: {line}") from error
