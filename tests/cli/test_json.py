"""`--json`: every command that prints something for people has it, and what it prints then."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import structlog
import yaml
from click.testing import CliRunner

from penstock import cli
from penstock.model.errors import Rejected
from penstock.model.settings import Secret
from penstock.ops.logs import configure
from penstock.service.actions import Operated
from tests.service.test_dashboard import Served

# Commands without it, and why.
WITHOUT = {
    "run": "a service; its log is JSON with --log-format json",
    "process": "a service; its log is JSON with --log-format json",
    "bridge": "a service; its --json is the encoding of messages",
    "init": "prints a file",
    "dead-letters show": "prints JSON always",
}


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(cli.main)
    for name in cli.main.list_commands(context):
        found = cli.main.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from ((f"{name} {below}", each) for below, each in found.commands.items())
        else:
            yield name, found


COMMANDS = dict(commands())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_prints_json_or_has_a_reason_not_to(name: str) -> None:
    has_it = any(each.name == "as_json" for each in COMMANDS[name].params)
    assert has_it or name in WITHOUT
    assert name in ("bridge", *(COMMANDS.keys() - WITHOUT.keys())) or not has_it


def test_only_commands_that_there_are_need_no_json() -> None:
    assert WITHOUT.keys() <= COMMANDS.keys()


def found(*words: str | Path, code: int = 0) -> Any:
    """What a command prints on standard output, and nothing else."""
    done = CliRunner().invoke(cli.main, [*map(str, words), "--json"], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def test_a_pause_and_its_end(file: Path) -> None:
    assert found("pause", file, "--for", "1h") == {"paused": ["default"]}
    assert found("resume", file) == {"resumed": ["default"]}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    configure("json")  # on standard error
    made = Served(tmp_path, token=Secret("key"))
    with made.server:
        yield made
    made.actions.close()
    structlog.reset_defaults()


@pytest.fixture
def running(served: Served, tmp_path: Path) -> Path:
    """The file of a pipeline that runs."""
    path = tmp_path / "pipeline.yaml"
    document = {
        "name": "shop", "backends": [{"name": "a", "type": "memory"}], "sink": {"type": "memory"},
        "state": str(tmp_path), "ops": {"port": served.server.port, "token": "key"},
    }  # fmt: skip
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize("action", ["retry", "shutdown"])
def test_an_action_of_the_ops_server(action: str, running: Path) -> None:
    done = found(action, running)
    assert (done["action"], done["state"] in ("running", "done")) == (action, True)
    assert done.keys() == {"id", "action", "state"}


def test_top_is_one_document(running: Path) -> None:
    shown = found("top", running)
    assert shown.keys() == {"status", "history"}
    assert shown["status"] == found("status", running) | {
        name: shown["status"][name] for name in ("uptime_seconds", "backends", "sinks")
    }
    assert shown["history"].keys() == {"step", "times", "series", "marks"}


class Letters:
    """Of a sink with one letter that can be stored and one that cannot, and one table."""

    def dead_letters(self) -> Iterator[Mapping[str, Any]]:
        yield from (self.dead_letter(str(id)) for id in (1, 2))

    def dead_letter(self, id: str) -> Mapping[str, Any]:
        return {"id": int(id), "event_id": f"e{id}", "table": "public.t", "reason": "too-large",
                "stored_at": "2026-11-29T03:05:01+00:00"}  # fmt: skip

    def suspend_table(self, backend: str, table: str) -> Mapping[str, Any]:
        return {"backend": backend, "table": table, "state": "suspended"}

    def resume_table(self, backend: str | None, table: str) -> Mapping[str, Any]:
        span = {"skipped": 3, "first_skipped": "0/1:0", "last_skipped": "0/2:0"}
        return {"backend": "memory", "table": table, "state": "resuming", **span}


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> None:
    def replayed(_: Operated, id: str, *, force: bool) -> Mapping[str, Any]:
        if id == "2":
            raise Rejected("the message is too large", "poison")
        return {"id": 1, "event_id": "e1", "sequence": 12, "duplicate": force}

    monkeypatch.setattr(Operated, "letters", property(lambda _: Letters()))
    monkeypatch.setattr("penstock.cli.dead_letters.replay_letter", replayed)


@pytest.mark.usefixtures("letters")
def test_a_replay_says_what_came_of_each(file: Path) -> None:
    stored = {"id": 1, "event_id": "e1", "sequence": 12, "duplicate": False, "error": ""}
    refused = {"id": 2, "event_id": "e2", "error": "the message is too large [poison.rejected]"}
    assert found("dead-letters", "replay", file, "--all", code=1) == [stored, refused]
    assert found("dead-letters", "replay", file, "1") == [stored]


@pytest.mark.usefixtures("letters")
def test_a_table_is_suspended_and_resumed(file: Path) -> None:
    done = found("tables", "suspend", file, "public.t")
    assert done == {"backend": "default", "table": "public.t", "state": "suspended"}
    done = found("tables", "resume", file, "public.t")
    assert (done["state"], done["skipped"], done["first_skipped"]) == ("resuming", 3, "0/1:0")


def test_changes_of_positions(file: Path) -> None:
    bookmark = {"place": "0000000000:0"}
    done = found("positions", file, "set", "default/0", json.dumps(bookmark), "--yes")
    assert (done["set"], done["bookmark"]["place"]) == ("default/0", bookmark["place"])
    assert found("positions", file, "release", "default/0")["released"] == "default/0"
    assert found("positions", file, "delete", "default/0", "--yes") == {"deleted": "default/0"}
    assert found("positions", file) == []
