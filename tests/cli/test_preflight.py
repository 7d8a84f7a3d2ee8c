"""The machine's part of the preflight."""

import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from starlette.responses import Response

from penstock.cli.preflight import (
    check_class_archive,
    check_followed_positions,
    check_java,
    check_master,
    check_package,
    check_partitions,
    check_port,
    check_positions,
    check_shards,
    check_sharing,
    check_spark,
    check_state,
    check_transform,
)
from penstock.config import Pipeline, parse_pipeline
from penstock.leases.sqlite import SqliteStore
from penstock.model.finding import Finding
from penstock.ops.requests import Access, Endpoint
from penstock.ops.server import OpsServer

Check = Callable[[Pipeline], Iterable[Finding]]
Findings = list[tuple[str, str]]


def java(folder: Path, script: str) -> dict[str, str]:
    """An environment in which `java` is this shell script."""
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"PATH": str(program.parent)}


@pytest.mark.parametrize(
    ("said", "level"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "ok"),
        ('openjdk version "21" 2023-09-19', "ok"),
        ('openjdk version "11.0.2" 2019-01-15', "error"),
        ('java version "1.8.0_292"', "error"),
        ("what?", "error"),
    ],
)
def test_java_must_be_17_or_newer(tmp_path: Path, said: str, level: str) -> None:
    found = check_java(java(tmp_path, f"echo '{said}' >&2"))
    assert found.level == level
    assert (level == "ok") == (not found.remedy)


def test_another_project_of_the_name_penstock_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "penstock-9.1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: penstock\nVersion: 9.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = check_package()
    assert (found.level, found.subject) == ("warning", "package")
    assert "penstock 9.1" in found.message
    assert found.remedy.startswith("pip uninstall penstock penstock-cdc")


def test_no_java_is_an_error_that_says_what_to_install(tmp_path: Path) -> None:
    found = check_java({"PATH": str(tmp_path)})
    assert found.level == "error"
    assert "openjdk-17-jre-headless" in found.remedy


def test_java_home_comes_first(tmp_path: Path) -> None:
    environment = java(tmp_path, "echo 'version \"17\"'")
    assert check_java(environment | {"JAVA_HOME": str(tmp_path)}).level == "ok"
    found = check_java(environment | {"JAVA_HOME": str(tmp_path / "none")})
    assert (found.level, "JAVA_HOME" in found.remedy) == ("error", True)


def test_spark_is_found_here() -> None:
    assert check_spark().level == "ok"


def test_a_state_folder_that_can_be_made_is_fine(tmp_path: Path) -> None:
    assert check_state(tmp_path / "a" / "b").message.endswith("will be made")
    assert not (tmp_path / "a").exists()
    assert check_state(tmp_path).level == "ok"


def test_a_state_folder_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    assert check_state(tmp_path / "x" / "y").level == "error"


def test_a_store_that_takes_a_row_is_fine_and_keeps_none(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    assert [check_positions(url).level for _ in range(2)] == ["ok", "ok"]
    assert SqliteStore(tmp_path / "a.db").list("") == []


def test_a_store_that_can_not_be_is_an_error() -> None:
    assert check_positions("sqlite:////proc/x.db").level == "error"
    assert check_positions("redis://x").level == "error"


def test_positions_in_memory_are_a_warning() -> None:
    assert check_positions("memory:").level == "warning"


PG = "{name: a, type: postgres, connection: 'postgresql://h/d', slot: s, publication: p}"
A, B = "{name: a, type: memory}", "{name: b, type: memory}"
POLLED = "{name: a, type: memory, polled: true}"
MONGO = "{{name: a, type: mongodb, connection: 'mongodb://h/', database: {}}}"
STEP = '[{sql: "SELECT * FROM changes WHERE route = 1"}]'
SHOP = "mongodb://h/shop"


def jetstream(subject: str, delivery: str = "auto") -> str:
    return f"{{type: jetstream, url: 'nats://h', subject: '{subject}', delivery: {delivery}}}"


def checked(check: Check, backends: str = A, sink: str = "{type: memory}", **more: str) -> Findings:
    keys = "".join(f"{name}: {text}\n" for name, text in more.items())
    text = f"backends: [{backends}]\nsink: {sink}\n{keys}"
    found = check(parse_pipeline(text, environment={}))
    return [(each.level, f"{each.message}; {each.remedy}") for each in found]


@pytest.mark.parametrize(
    ("backends", "positions", "says"),
    [
        (A, "sqlite:///x.db", "may read a:"),
        (A, "memory:", "may read a:"),
        (A, "nats://h/b", None),
        (A, "postgresql://h/d", None),
        (PG, "memory:", None),
        (f"{PG}, {B}", "sqlite:///x.db", "may read b:"),
    ],
)
def test_a_store_of_one_machine_is_a_warning_where_anyone_may_read(
    backends: str, positions: str, says: str | None
) -> None:
    found = checked(check_sharing, backends, positions=f"'{positions}'")
    assert [level for level, _ in found] == (["warning"] if says else [])
    assert all(says in text for _, text in found if says)


@pytest.mark.parametrize(
    ("sink", "says"),
    [(jetstream("s.{collection}"), "only the sink"), ("{type: memory}", "both would write")],
)
def test_whether_the_sink_keeps_a_second_instance_away_is_told(sink: str, says: str) -> None:
    [(_, text)] = checked(check_sharing, sink=sink, positions="'memory:'")
    assert says in text


@pytest.mark.parametrize(
    ("database", "is_followed"), [("shop", True), ('"*"', True), ("other", False)]
)
def test_positions_in_a_followed_database_are_a_warning(database: str, is_followed: bool) -> None:
    found = checked(check_followed_positions, MONGO.format(database), positions=f"'{SHOP}'")
    assert [level for level, _ in found] == (["warning"] if is_followed else [])
    assert all("left out" in text for _, text in found)


@pytest.mark.parametrize(
    ("master", "transform", "warns"),
    [
        ("local[*]", STEP, False),
        ("spark://host:7077", STEP, True),
        ("spark://host:7077", "[]", False),
    ],
)
def test_a_transform_on_a_cluster_can_drop_what_cannot_be_decoded(
    master: str, transform: str, warns: bool
) -> None:
    found = checked(check_transform, transform=transform, spark=f'{{master: "{master}"}}')
    assert [level for level, _ in found] == (["warning"] if warns else [])


@pytest.mark.parametrize(
    ("partitions", "subject", "transform", "says"),
    [
        (1, "cdc.{collection}", "[]", None),
        (4, "cdc.{partition}", "[]", None),
        (1, "cdc.{source_partition}", "[]", None),
        (1, "cdc.{partition}", "[]", "{source_partition}"),
        (4, "cdc.{source_partition}", "[]", "put {partition} into sink.subject"),
        (4, "cdc.{collection}", STEP, None),
    ],
)
def test_a_subject_and_hash_partitions_that_do_not_fit_are_found(
    partitions: int, subject: str, transform: str, says: str | None
) -> None:
    sink = jetstream(subject)
    found = checked(check_partitions, sink=sink, partitions=str(partitions), transform=transform)
    assert [level for level, _ in found] == (["warning"] if says else [])
    assert all(says in text.partition("; ")[2] for _, text in found if says)


@pytest.mark.parametrize(
    ("backends", "subject", "delivery", "level"),
    [
        (A, "cdc.{collection}", "auto", None),
        (POLLED, "cdc.{collection}", "auto", "warning"),
        (POLLED, "cdc.{collection}", "exactly-once", "error"),
        (POLLED, "cdc.{collection}", "deduplicated", None),
        (POLLED, "cdc.{source_partition}", "auto", None),
        (POLLED, "cdc.{source_partition}-{collection}", "auto", "warning"),
        (f"{A}, {B}", "cdc.{collection}", "auto", "warning"),
        (f"{A}, {B}", "cdc.{backend}", "auto", None),
    ],
)
def test_partitions_that_share_subjects_are_found_where_exactly_once_is_wanted(
    backends: str, subject: str, delivery: str, level: str | None
) -> None:
    found = checked(check_shards, backends, jetstream(subject, delivery))
    assert [each for each, _ in found] == ([level] if level else [])


@pytest.mark.slow
def test_a_port_that_is_taken_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.preflight._PATIENCE", 0.2)  # of a server that never answers
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = check_port("127.0.0.1", port, "shop")
    assert (found.level, "running already" in found.remedy) == ("error", True)
    assert check_port("127.0.0.1", port, "shop").level == "ok"


@pytest.mark.parametrize(("name", "level"), [("shop", "ok"), ("another", "error")])
def test_a_port_that_this_very_pipeline_has_is_no_error(name: str, level: str) -> None:
    def answer(*_: object) -> Response:
        body = b'{"penstock": "1", "pipeline": "shop"}'
        return Response(body, media_type="application/json")

    endpoints = [Endpoint("/", "GET", answer)]
    with OpsServer(port=0, access=Access(), endpoints=endpoints) as server:
        assert check_port("127.0.0.1", server.port, name).level == level


def test_an_address_that_is_not_ours_is_an_error() -> None:
    assert check_port("203.0.113.1", 0, "shop").level == "error"
    assert check_port("127.0.0.1", 0, "shop").level == "ok"


def test_a_privileged_port_is_an_error_unless_we_are() -> None:
    assert check_port("127.0.0.1", 1, "shop").level == ("ok" if os.geteuid() == 0 else "error")


def test_the_variable_of_the_class_archive_names_the_setting() -> None:
    (found,) = check_class_archive({"PENSTOCK_CLASS_ARCHIVE": "off"})
    assert found.level == "warning"
    assert "spark.class_archive" in found.remedy
    assert not list(check_class_archive({}))


def test_a_standalone_master_must_take_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (found,) = check_master(f"spark://127.0.0.1:1,127.0.0.1:{port}")
        assert (found.level, found.message) == ("ok", f"127.0.0.1:{port} takes connections")
    for master in (f"spark://127.0.0.1:{port}", "spark://127.0.0.1"):
        (found,) = check_master(master)
        assert (found.level, "spark.master" in found.remedy) == ("error", True)
        assert master in found.message


@pytest.mark.parametrize("master", ["local[*]", "yarn", "k8s://https://kubernetes.default.svc"])
def test_other_masters_are_not_connected_to(master: str) -> None:
    assert not list(check_master(master))
