"""`penstock init`: its files are pipelines, and its SQL is what `check` asks for."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.cli.init import pipeline_file
from penstock.config import parse_pipeline
from tests.servers import Nats, Postgres

SOURCES = ["postgres", "mongodb", "dynamodb", "cosmos"]


@pytest.mark.parametrize("source", SOURCES)
def test_the_file_is_a_pipeline_without_any_variable(source: str) -> None:
    found = parse_pipeline(pipeline_file(source), environment={})
    assert found.backends[0].type == source


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_every_default_in_a_comment_is_what_the_key_has_without_it(source: str) -> None:
    text = pipeline_file(source)
    keys = re.findall(r"^    # ([a-z_]+): (.*)$", text, re.MULTILINE)
    assert len(keys) > 8
    before = parse_pipeline(text, environment={}).backends[0]
    for key, value in keys:
        if value in ("null", "''", "[]"):
            continue  # what is none, and may not be written
        written = text.replace(f"    # {key}: {value}\n", f"    {key}: {value}\n")
        assert parse_pipeline(written, environment={}).backends[0] == before, key


def test_every_key_has_its_description() -> None:
    text = pipeline_file("postgres")
    assert "    # The replication slot; made if missing." in text
    assert "    slot: shop\n" in text
    assert "    # on_gap: fail\n" in text


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_in_comments_at_its_end_may_be_taken(source: str) -> None:
    end = pipeline_file(source).partition("# The dashboard")[2].replace("\n# ops", "\nops")
    for key in ("  token", "snapshot", "state"):
        end = end.replace(f"\n# {key}: ", f"\n{key}: ")
    text = pipeline_file(source).partition("# The dashboard")[0] + "#" + end
    found = parse_pipeline(text, environment={"OPS_TOKEN": "t"})
    assert found.ops.token is not None
    assert found.snapshot.initial
    assert str(found.state) == "penstock-state"


def test_values_are_written_as_a_person_does() -> None:
    text = pipeline_file("postgres")
    assert not re.search(r"# [a-z_]+: (\d{5,}|[\d.]*\.\d*)$", text, re.MULTILINE)
    assert re.search(r"# [a-z_]+: \d+[KM]iB$", text, re.MULTILINE)


def test_all_is_named_by_the_database(tmp_path: Path) -> None:
    text = CliRunner().invoke(main, ["init", "postgres", "--name", "crm"]).output
    found = parse_pipeline(text, environment={})
    assert (found.name, found.sink.settings.stream) == ("crm", "CRM")
    assert found.backends[0].settings.publication == "crm"
    assert "shop" not in text and "ON DATABASE crm" in text
    refused = CliRunner().invoke(main, ["init", "postgres", "--name", "My Shop"])
    assert refused.exit_code == 2 and "41 lower case letters" in refused.output


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_check_finds_no_mistake_but_what_is_not_there(source: str, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    done = CliRunner().invoke(main, ["init", source, "--to", str(file)])
    assert (done.exit_code, done.output) == (0, f"next: penstock check {file}\n")
    again = CliRunner().invoke(main, ["init", source, "--to", str(file)])
    assert again.exit_code == 2 and "File exists" in again.output
    if source in ("postgres", "cosmos"):  # the others take long to find that nothing is there
        closed = {"PG_URL": "postgresql://u@127.0.0.1:1/shop", "NATS_URL": "nats://127.0.0.1:1"}
        closed["COSMOS_ENDPOINT"] = "http://127.0.0.1:1/"
        done = CliRunner().invoke(main, ["check", str(file), "--json"], env=closed)
        errors = {row["subject"] for row in json.loads(done.output) if row["level"] == "error"}
        assert {each.partition(":")[0] for each in errors} <= {
            "backend default", "sink jetstream", "ops",
        }  # fmt: skip
        assert "sink jetstream: NATS" in errors


@pytest.mark.live
def test_after_its_sql_check_finds_no_error(nats: Nats, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    text = pipeline_file("postgres").replace("stream: SHOP", f"stream: INIT_{id(file)}")
    file.write_text(text.replace('"shop.', f'"init{id(file)}.') + "ops: {port: 0}\n")
    with Postgres(version=16) as server, server.database("shop") as shop:
        shop.execute("CREATE TABLE customers (id int PRIMARY KEY)")
        shop.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        for statement in re.findall(r"^#     (.*;)", text, re.MULTILINE):
            shop.execute(statement)
        server.stop()
        server.start()
        role = server.url_of("shop").partition("://")[2].rpartition("@")[2]
        variables = {"PG_URL": f"postgresql://penstock:change-me@{role}", "NATS_URL": nats.url}
        done = CliRunner().invoke(main, ["check", str(file), "--json"], env=variables)
    assert [row for row in json.loads(done.output) if row["level"] == "error"] == []


def test_a_mistyped_command_is_answered_with_the_nearest() -> None:
    done = CliRunner().invoke(main, ["chek", "pipeline.yaml"])
    assert done.exit_code == 2
    assert "Did you mean 'check'?" in done.output
    assert "Did you mean" not in CliRunner().invoke(main, ["xyzzy"]).output
