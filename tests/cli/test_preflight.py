"""The machine's part of the preflight."""

import os
import socket
from pathlib import Path

import pytest

from penstock.cli.preflight import (
    check_class_archive,
    check_followed_positions,
    check_java,
    check_master,
    check_partitions,
    check_port,
    check_positions,
    check_shards,
    check_sharing,
    check_spark,
    check_state,
    check_transform,
)
from penstock.config import parse_pipeline
from penstock.leases.sqlite import SqliteStore
from penstock.ops.respond import Response
from penstock.ops.server import OpsServer


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


@pytest.mark.parametrize(
    ("backends", "positions", "named"),
    [
        ("{name: a, type: memory}", "sqlite:///x.db", "a"),
        ("{name: a, type: memory}", "memory:", "a"),
        ("{name: a, type: memory}", "nats://h/b", None),
        ("{name: a, type: memory}", "postgresql://h/d", None),
        (
            "{name: a, type: postgres, connection: 'postgresql://h/d', slot: s, publication: p}",
            "memory:",
            None,
        ),
        (
            "{name: a, type: postgres, connection: 'postgresql://h/d', slot: s, publication: p},"
            " {name: b, type: memory}",
            "sqlite:///x.db",
            "b",
        ),
    ],
)
def test_a_store_of_one_machine_is_a_warning_where_anyone_may_read(
    backends: str, positions: str, named: str | None
) -> None:
    text = f"""
        backends: [{backends}]
        sink: {{type: memory}}
        positions: "{positions}"
    """
    found = list(check_sharing(parse_pipeline(text, environment={})))
    assert [each.level for each in found] == (["warning"] if named else [])
    assert all(f"may read {named}:" in each.message for each in found)


@pytest.mark.parametrize(
    ("database", "is_followed"), [("shop", True), ('"*"', True), ("other", False)]
)
def test_positions_in_a_followed_database_are_a_warning(database: str, is_followed: bool) -> None:
    text = f"""
        backends:
          - {{name: a, type: mongodb, connection: "mongodb://h/", database: {database}}}
        sink: {{type: memory}}
        positions: "mongodb://h/shop"
    """
    found = list(check_followed_positions(parse_pipeline(text, environment={})))
    assert [each.level for each in found] == (["warning"] if is_followed else [])
    assert all("left out" in each.message for each in found)


@pytest.mark.parametrize(
    ("sink", "says"),
    [
        ("type: jetstream, url: 'nats://h', stream: S, subject: 's.{collection}'", "only the sink"),
        ("type: memory", "both would write"),
    ],
)
def test_whether_the_sink_keeps_a_second_instance_away_is_told(sink: str, says: str) -> None:
    text = f"""
        backends: [{{name: a, type: memory}}]
        sink: {{{sink}}}
        positions: "memory:"
    """
    (found,) = check_sharing(parse_pipeline(text, environment={}))
    assert says in found.message


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
        return Response(status=200, content_type="application/json", body=body, headers={})

    with OpsServer(bind="127.0.0.1", port=0, answer=answer, shutdown=lambda: None) as server:
        assert check_port("127.0.0.1", server.port, name).level == level


def test_an_address_that_is_not_ours_is_an_error() -> None:
    assert check_port("203.0.113.1", 0, "shop").level == "error"
    assert check_port("127.0.0.1", 0, "shop").level == "ok"


def test_a_privileged_port_is_an_error_unless_we_are() -> None:
    assert check_port("127.0.0.1", 1, "shop").level == ("ok" if os.geteuid() == 0 else "error")


@pytest.mark.parametrize(
    ("master", "transform", "warns"),
    [
        ("local[*]", '[{sql: "SELECT * FROM changes"}]', False),
        ("spark://host:7077", '[{sql: "SELECT * FROM changes"}]', True),
        ("spark://host:7077", "[]", False),
    ],
)
def test_a_transform_on_a_cluster_can_drop_what_cannot_be_decoded(
    master: str, transform: str, warns: bool
) -> None:
    text = f"""
        backends: [{{name: default, type: memory}}]
        sink: {{type: memory}}
        transform: {transform}
        spark: {{master: "{master}"}}
    """
    found = list(check_transform(parse_pipeline(text, environment={})))
    assert [each.level for each in found] == (["warning"] if warns else [])


@pytest.mark.parametrize(
    ("partitions", "subject", "transform", "said"),
    [
        (1, "cdc.{collection}", "[]", None),
        (4, "cdc.{partition}", "[]", None),
        (1, "cdc.{source_partition}", "[]", None),
        (1, "cdc.{partition}", "[]", "{source_partition}"),
        (4, "cdc.{source_partition}", "[]", "put {partition} into sink.subject"),
        (4, "cdc.{collection}", '[{sql: "SELECT * FROM changes WHERE route = 1"}]', None),
    ],
)
def test_a_subject_and_hash_partitions_that_do_not_fit_are_found(
    partitions: int, subject: str, transform: str, said: str | None
) -> None:
    text = f"""
        backends: [{{name: default, type: memory}}]
        partitions: {partitions}
        transform: {transform}
        sink: {{type: jetstream, url: "nats://h", subject: "{subject}"}}
    """
    found = list(check_partitions(parse_pipeline(text, environment={})))
    assert [each.level for each in found] == (["warning"] if said else [])
    assert all(said in each.remedy for each in found if said)


@pytest.mark.parametrize(
    ("backends", "subject", "delivery", "level"),
    [
        ("{name: a, type: memory}", "cdc.{collection}", "auto", None),
        ("{name: a, type: memory, polled: true}", "cdc.{collection}", "auto", "warning"),
        ("{name: a, type: memory, polled: true}", "cdc.{collection}", "exactly-once", "error"),
        ("{name: a, type: memory, polled: true}", "cdc.{collection}", "deduplicated", None),
        ("{name: a, type: memory, polled: true}", "cdc.{source_partition}", "auto", None),
        (
            "{name: a, type: memory, polled: true}",
            "cdc.{source_partition}-{collection}",
            "auto",
            "warning",
        ),
        ("{name: a, type: memory}, {name: b, type: memory}", "cdc.{collection}", "auto", "warning"),
        ("{name: a, type: memory}, {name: b, type: memory}", "cdc.{backend}", "auto", None),
    ],
)
def test_partitions_that_share_subjects_are_found_where_exactly_once_is_wanted(
    backends: str, subject: str, delivery: str, level: str | None
) -> None:
    text = f"""
        backends: [{backends}]
        sink: {{type: jetstream, url: "nats://h", subject: "{subject}", delivery: {delivery}}}
    """
    found = list(check_shards(parse_pipeline(text, environment={})))
    assert [each.level for each in found] == ([level] if level else [])


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
