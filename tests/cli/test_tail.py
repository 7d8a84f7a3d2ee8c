"""`penstock tail` on a real stream."""

import json
import subprocess
import sys
from itertools import count
from pathlib import Path

import click
import orjson
import ormsgpack
import pytest
from click.testing import CliRunner, Result

from penstock.cli import main
from penstock.cli.options import nats_login, settings_over
from penstock.consumer.tail.reader import TailReader
from penstock.model.settings import Secret
from penstock.nats.settings import NatsSettings
from tests.servers import Nats, free_port
from tests.sinks.changes import publish

pytestmark = pytest.mark.live


def change(number: int) -> dict[str, object]:
    return {
        "event_id": f"default:00000000/{number:08X}:0",
        "backend": "default",
        "operation": "INSERT",
        "schema": "public",
        "collection": "users",
        "key": {"id": number},
        "data": {"id": number, "name": f"user {number}", "raw": b"\x01"},
        "committed_at": "2026-11-21T10:00:00.123456Z",
    }


@pytest.fixture
def filled(nats: Nats, stream: str) -> str:
    """A stream with the changes 1 to 20."""
    publish(nats.url, stream, [ormsgpack.packb(change(number)) for number in range(1, 21)])
    return stream


def tail(nats: Nats, stream: str, *options: str) -> Result:
    return CliRunner().invoke(main, ["tail", "--url", nats.url, "--stream", stream, *options])


def test_the_last_ten_are_printed_and_then_it_stops_when_told(nats: Nats, filled: str) -> None:
    result = tail(nats, filled, "--no-follow")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) == 10
    assert "INSERT" in lines[0]
    assert "public.users" in lines[0]
    assert "id=11" in lines[0]
    assert 'name: "user 20"' in lines[-1]


def test_a_server_that_is_late_is_not_the_end_of_the_stream(
    nats: Nats, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, fetch = count(), TailReader.fetch
    monkeypatch.setattr(
        TailReader, "fetch", lambda *a, **more: [] if next(calls) % 2 == 0 else fetch(*a, **more)
    )
    assert len(tail(nats, filled, "--no-follow").stdout.splitlines()) == 10


def test_json_lines_parse_one_by_one(nats: Nats, filled: str) -> None:
    result = tail(nats, filled, "--json", "--from", "all", "--count", "3")
    read = [json.loads(line) for line in result.stdout.splitlines()]
    assert [change["data"]["id"] for change in read] == [1, 2, 3]
    assert read[0]["data"]["raw"] == "AQ=="
    assert [change["sequence"] for change in read] == [1, 2, 3]


def test_a_message_that_is_no_change_is_skipped_and_said(nats: Nats, stream: str) -> None:
    publish(nats.url, stream, [orjson.dumps(_json(1)), b"hello", orjson.dumps(_json(2))])
    result = tail(nats, stream, "--from", "all", "--no-follow")
    assert [line.count("INSERT") for line in result.stdout.splitlines()] == [1, 1]
    assert "skipped" in result.stderr


def test_an_empty_stream_ends_at_once_when_it_is_not_followed(nats: Nats, stream: str) -> None:
    publish(nats.url, stream, [])
    result = tail(nats, stream, "--no-follow", "--from", "all")
    assert (result.exit_code, result.output) == (0, "")


@pytest.fixture
def file(tmp_path: Path, nats: Nats, stream: str) -> Path:
    """Of a pipeline that publishes to that stream, below `STREAM.shop`."""
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        f"name: shop\nstate: {tmp_path}\nbackends: [{{type: memory}}]\nsink:\n  type: jetstream\n"
        f"  url: {nats.url}\n  stream: {stream}\n  subject: '{stream}.shop.{{collection}}'\n"
    )
    return path


def test_a_pipeline_file_says_server_stream_and_subjects(
    nats: Nats, stream: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment does not replace what the file says, and an option does."""
    bodies = [ormsgpack.packb(change(number)) for number in (1, 2)]
    publish(nats.url, stream, bodies, subject="shop.users")
    publish(nats.url, stream, [ormsgpack.packb(change(3))], subject="other.users")
    monkeypatch.setenv("NATS_URL", f"nats://127.0.0.1:{free_port()}")

    def ids(*options: str) -> list[int]:
        given = ["tail", str(file), "--json", "--no-follow", *options]
        found = CliRunner().invoke(main, given)
        assert found.exit_code == 0, found.output
        return [json.loads(line)["data"]["id"] for line in found.stdout.splitlines()]

    assert ids() == [1, 2]
    assert ids("--subject", f"{stream}.other.>") == [3]
    assert ids("--stream", stream) == [1, 2, 3]
    elsewhere = CliRunner().invoke(
        main, ["tail", str(file), "--url", f"nats://127.0.0.1:{free_port()}"]
    )
    assert (elsewhere.exit_code, "no NATS server" in elsewhere.stderr) == (1, True)
    missing = CliRunner().invoke(main, ["tail", str(file), "--stream", "NOWHERE", "--no-follow"])
    assert "there is no stream 'NOWHERE'" in missing.stderr


@pytest.mark.parametrize("command", ["tail", "mirror"])
def test_a_pipeline_without_a_stream_is_one_clear_error(command: str, tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text("backends: [{type: memory}]\nsink: {type: memory}\n")
    more = ["--to", f"sqlite:///{tmp_path}/m.db"] if command == "mirror" else []
    found = CliRunner().invoke(main, [command, str(path), *more])
    assert found.exit_code == 2
    assert "has a sink of type memory, which publishes to no stream" in found.stderr
    assert "hint:" in found.stderr
    found = CliRunner().invoke(main, [command, str(tmp_path / "none.yaml"), *more])
    assert (found.exit_code, "no such file" in found.stderr) == (2, True)


def test_a_login_of_the_command_line_replaces_that_of_the_file(tmp_path: Path) -> None:
    known = NatsSettings(url="nats://a", user="u", password="p", domain="hub", timeout=9)

    def over(*options: str) -> NatsSettings:
        found: list[NatsSettings] = []

        @click.command
        @click.option("--url")
        @nats_login
        def command(url: str | None, **login: str | None) -> None:
            found.append(settings_over(known, url, login))

        command(options, standalone_mode=False)
        return found[0]

    seed = tmp_path / "seed"
    seed.write_text("SU1\n")
    assert over() == known
    assert over("--url", "nats://b") == known.model_copy(update={"url": Secret("nats://b")})
    with_seed = over("--nkey", str(seed))
    assert (with_seed.user, with_seed.password, with_seed.domain) == (None, None, "hub")
    assert with_seed.nkey == Secret("SU1")
    assert over("--url", "nats://me:p@b").user is None


def test_a_missing_stream_is_one_clear_error(nats: Nats) -> None:
    result = tail(nats, "NOWHERE", "--no-follow")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: there is no stream 'NOWHERE'")


def test_a_server_without_jetstream_is_one_clear_error(stream: str) -> None:
    with Nats(config={"jetstream": False}) as server:
        result = tail(server, stream)
    assert result.exit_code == 2
    assert "has no JetStream" in result.stderr
    assert "hint:" in result.stderr


def test_a_bad_start_is_one_clear_error(nats: Nats, filled: str) -> None:
    assert tail(nats, filled, "--from", "yesterday").exit_code == 2


def test_an_absent_server_is_one_clear_error() -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    result = CliRunner().invoke(main, ["tail", "--url", url])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: no NATS server can be reached")


def test_following_prints_what_comes_until_interrupted(nats: Nats, filled: str) -> None:
    command = [sys.executable, "-m", "penstock", "tail", "--url", nats.url, "--stream", filled]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(10):
            process.stdout.readline()
        publish(nats.url, filled, [ormsgpack.packb(change(21))])
        assert json.loads(process.stdout.readline())["data"]["id"] == 21
        process.send_signal(2)
        assert process.wait(20) == 0


def _json(number: int) -> dict[str, object]:
    return {**change(number), "data": {"id": number}}
