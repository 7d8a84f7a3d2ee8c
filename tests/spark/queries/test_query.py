"""How changes go through Spark: as rows, in planned micro-batches, or in open ones."""

import json
import traceback
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.config import Pipeline, Spark, parse_pipeline
from penstock.feeds import Gap, HistoryLost
from penstock.feeds.dynamodb.failures import Throttled
from penstock.leases.etcd_gateway import MaybeDone
from penstock.microbatch.late import CARRIER
from penstock.model.change import COLUMNS, IMAGES, OPTIONAL
from penstock.model.errors import (
    LeaseLost,
    PenstockError,
    PositionLost,
    RecordsExpired,
    SettingsError,
    Unavailable,
)
from penstock.sinks.jetstream import JetStreamSettings
from penstock.sinks.jetstream.publishing.places import OtherWriters
from penstock.sinks.memory import MemorySinkSettings, stored
from penstock.spark.queries.query import (
    _bounds,
    _late,
    failure,
    images,
    listening,
    mode,
    start_query,
    task_slots,
)
from penstock.wire.hash_partitions import hash_partitions

TRANSFORM = '[{sql: "SELECT * FROM changes"}]'
CHANGES = 2_000
JETSTREAM = {"type": "jetstream", "url": "nats://nowhere", "stream": "S"}


@pytest.mark.parametrize(
    ("options", "transform", "meant"),
    [
        ("{}", "[]", "realtime"),
        ("{trigger: 0s}", "[]", "realtime"),
        ("{trigger: realtime}", "[]", "realtime"),
        ("{trigger: 1s}", "[]", "rows"),
        ("{mode: rows}", "[]", "rows"),
        ("{}", TRANSFORM, "rows"),
        ("{trigger: 1s}", TRANSFORM, "rows"),
    ],
)
def test_micro_batches_stay_open_unless_rows_or_an_interval_are_wanted(
    options: str, transform: str, meant: str
) -> None:
    text = f"""
        backends: [{{name: default, type: memory}}]
        sink: {{type: memory}}
        transform: {transform}
        spark: {options}
    """
    assert mode(parse_pipeline(text, environment={})) == meant


@pytest.mark.parametrize(
    ("met", "kind"),
    [
        (SettingsError("m", hint="h"), SettingsError),
        (LeaseLost("m", hint="h"), LeaseLost),
        (OtherWriters("m", hint="h"), SettingsError),
        (HistoryLost(Gap(cause="c", after="", detail="m"), hint="h"), PositionLost),
        (RecordsExpired("m", hint="h"), RecordsExpired),
        (Throttled("m", hint="h"), Unavailable),
        (MaybeDone("m", hint="h"), Unavailable),
    ],
)
def test_an_error_of_a_task_keeps_its_meaning_its_hint_and_its_code(
    met: PenstockError, kind: type[PenstockError]
) -> None:
    cause = "org.apache.spark.api.python.PythonException: Traceback (most recent call last):"
    line = traceback.format_exception_only(met)[-1]
    found = failure(RuntimeError(f"Job aborted\n{cause}\n{line}\n at penstock.x.Y: of Java"))
    assert (type(found), str(found), found.code) == (kind, str(met), met.code)


def test_what_we_did_not_raise_is_tried_again() -> None:
    for text in ("\nJob aborted", "penstock.nowhere.Nothing: x", "penstock.model.errors.Absent: x"):
        found = failure(RuntimeError(text))
        assert type(found) is Unavailable
        assert text.strip() in str(found)
    assert "without an error" in str(failure(None))


@pytest.fixture
def run() -> Iterator[Path]:
    """As the service's: with a short path, as it holds a unix socket."""
    with TemporaryDirectory(prefix="run-") as folder:
        yield Path(folder)


def pipeline_of(folder: Path, *statements: str, **spark: Any) -> Pipeline:
    document = {
        "backends": [{"name": "default", "type": "memory", "changes": CHANGES, "page": 300}],
        "sink": {"type": "memory", "folder": str(folder)},
        "transform": [{"sql": statement} for statement in statements],
        "spark": spark,
        "state": str(folder / "state"),
    }
    return parse_pipeline(json.dumps(document), environment={})


def test_a_transform_that_spark_refuses_says_why(spark: SparkSession, run: Path) -> None:
    for sql, said in (
        ("SELEC * FROM changes", "PARSE_SYNTAX_ERROR"), ("SELECT nobody FROM changes", "nobody"),
    ):  # fmt: skip
        pipeline = pipeline_of(run, sql)
        with pytest.raises(SettingsError, match=said) as caught:
            start_query(spark, pipeline, pipeline.backends[0], run=run, attempt=1, reports={})
        assert sql in caught.value.hint


# Statements, and the columns that go through the JVM.
TRANSFORMS: dict[str, tuple[list[str], set[str]]] = {
    "filter": (["SELECT * FROM changes WHERE operation = 'UPDATE'"], {"operation", CARRIER}),
    "two steps": (
        [
            "SELECT * FROM changes WHERE ordinal % 3 = 1",
            "SELECT * EXCEPT (tenant), upper(collection) AS tenant FROM changes",
        ],
        {"ordinal", "collection", "tenant", CARRIER},
    ),
    "image": (
        [
            "SELECT * EXCEPT (after), get_json_object(after, '$') AS after FROM changes"
            " WHERE get_json_object(after, '$.number') % 2 = 0"
        ],
        {"after", CARRIER},
    ),
    "nothing left": (["SELECT * FROM changes WHERE ordinal < 0"], {"ordinal", CARRIER}),
    "the relation": (["SELECT * FROM changes WHERE relation_id IS NULL"], {"relation_id", CARRIER}),
    "a list": ([f"SELECT {', '.join(COLUMNS)} FROM changes WHERE ordinal < 3"], set(COLUMNS)),
    "an old list": (
        [f"SELECT {', '.join(c for c in COLUMNS if c not in OPTIONAL)} FROM changes"],
        set(COLUMNS),
    ),
    "without what may lack": (["SELECT * EXCEPT (schema_version) FROM changes"], set(COLUMNS)),
    "subquery": (
        ["SELECT * FROM changes WHERE ordinal IN (SELECT col1 FROM VALUES (1))"],
        set(COLUMNS),
    ),
    "union": (["SELECT * FROM changes UNION ALL SELECT * FROM changes WHERE 1 = 0"], set(COLUMNS)),
    "none": ([], {CARRIER}),
}


def test_what_arrives_is_what_the_transform_makes_of_whole_rows(
    spark: SparkSession, run: Path
) -> None:
    for name, (statements, through_the_jvm) in TRANSFORMS.items():
        folder = run / name
        folder.mkdir()
        pipeline = pipeline_of(folder, *statements, mode="rows")
        late = _late(spark, pipeline)
        assert set(COLUMNS) - late | ({CARRIER} if late else set()) == through_the_jvm, name
        take_all(spark, pipeline, folder)
        assert list((folder / "side-channel-default-2").iterdir()) == [], name
        expected = by_whole_rows(spark, statements, folder / "whole rows")
        assert arrived(folder) == expected, name


def take_all(spark: SparkSession, pipeline: Pipeline, run: Path) -> None:
    """Starts the query, and stops it when it has taken all changes."""
    query = start_query(spark, pipeline, pipeline.backends[0], run=run, attempt=2, reports={})
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def by_whole_rows(spark: SparkSession, statements: list[str], folder: Path) -> list[dict[str, Any]]:
    """As a user of the DataFrame would do it."""
    options = {"backend": "memory", "name": "default", "changes": str(CHANGES), "page": "300"}
    frame = spark.readStream.format("penstock").options(**options).load()
    for statement in statements:
        frame.createOrReplaceTempView("changes")
        frame = spark.sql(statement)
    query = (
        frame.writeStream.format("penstock")
        .options(sink="memory", folder=str(folder), checkpointLocation=str(folder / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return arrived(folder)


def arrived(folder: Path) -> list[dict[str, Any]]:
    rows = stored(MemorySinkSettings(folder=str(folder)))
    return [{key: value for key, value in row.items() if key != "captured_at"} for row in rows]


def test_changes_have_their_hash_partition_and_statements_see_it(
    spark: SparkSession, run: Path
) -> None:
    for statements in (["SELECT * FROM changes WHERE route <> 3"], []):
        folder = run / str(len(statements))
        folder.mkdir()
        whole = pipeline_of(folder, *statements, trigger="50ms")
        pipeline = whole.model_copy(update={"partitions": 5})
        take_all(spark, pipeline, folder)
        rows = arrived(folder)
        found = {(row["collection"], row["document_id"], row["route"]) for row in rows}
        assert found == {row for row in hashed(5) if not statements or row[2] != 3}
        assert len({route for _, _, route in found}) > 1


def hashed(count: int) -> set[tuple[str, str, int]]:
    """Of each document of the memory feed: collection, id and hash partition."""
    names = [f"p0-{number}" for number in range(7)]
    numbers = hash_partitions(pa.array(["items"] * 7), pa.array(names), count).to_pylist()
    return {("items", name, number) for name, number in zip(names, numbers, strict=True)}


def test_what_a_failed_attempt_left_in_its_side_channel_goes(
    spark: SparkSession, run: Path
) -> None:
    pipeline = pipeline_of(run, "SELECT * FROM changes WHERE operation = 'UPDATE'")
    left = run / "side-channel-default-6"
    left.mkdir()
    (left / "17-0").write_bytes(b"of a worker that was killed")
    checkpoint = run / "checkpoint-default-6"
    checkpoint.mkdir()
    start_query(spark, pipeline, pipeline.backends[0], run=run, attempt=7, reports={}).stop()
    assert not left.exists()
    assert not checkpoint.exists()


def test_columns_that_a_transform_drops_or_doubles_are_named(
    spark: SparkSession, run: Path
) -> None:
    for sql, said in (
        ("SELECT * EXCEPT (key) FROM changes", "lacks the columns key"),
        ("SELECT *, 'me' AS tenant FROM changes", "tenant"),
    ):
        pipeline = pipeline_of(run, sql)
        with pytest.raises(PySparkException, match=said):
            start_query(
                spark, pipeline, pipeline.backends[0], run=run, attempt=1, reports={}
            ).processAllAvailable()


@pytest.mark.parametrize(
    ("sink", "late", "meant"),
    [
        ({"type": "memory"}, set(IMAGES), "json"),
        (JETSTREAM, {*IMAGES, "cursor"}, "msgpack"),
        (JETSTREAM, {"key", "after"}, "json"),
        (JETSTREAM, {"key", "before", "after"}, "json"),
        ({**JETSTREAM, "encoding": "json"}, set(IMAGES), "json"),
    ],
)
def test_images_are_as_the_sink_wants_them_where_no_transform_sees_them(
    sink: dict[str, str], late: set[str], meant: str
) -> None:
    text = f"""
        backends: [{{name: default, type: memory}}]
        sink: {json.dumps(sink)}
        transform: {TRANSFORM}
    """
    assert images(parse_pipeline(text, environment={}), late) == meant


def test_lines_pass_no_transform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JetStreamSettings, "images", "text")
    lines = "backends: [{name: default, type: memory}]", f"sink: {json.dumps(JETSTREAM)}"
    open_, rows = "\n".join(lines), "\n".join([*lines, f"transform: {TRANSFORM}"])
    assert images(parse_pipeline(open_, environment={})) == "text"
    assert images(parse_pipeline(rows, environment={}), IMAGES) == "json"


@pytest.mark.parametrize(
    ("late", "options", "meant"),
    [
        (set(), {}, ("50000", str(16 * 2**20))),
        ({"after"}, {}, ("100000", str(32 * 2**20))),
        ({"after"}, {"max_events": 7}, ("7", str(32 * 2**20))),
        ({"after"}, {"max_bytes": "1MiB"}, ("100000", str(2**20))),
    ],
)
def test_micro_batches_of_stubs_are_larger_unless_the_file_says_how_large(
    tmp_path: Path, late: set[str], options: dict[str, Any], meant: tuple[str, str]
) -> None:
    bounds = _bounds(pipeline_of(tmp_path, "SELECT * FROM changes", **options), late)
    assert (bounds["max_events"], bounds["max_bytes"]) == meant


def test_the_task_slots_of_a_local_session_are_its_threads(spark: SparkSession) -> None:
    assert [task_slots(spark), task_slots(spark)] == [2, 2]


def test_a_local_session_needs_no_server_for_executors(spark: SparkSession) -> None:
    assert listening(spark, Spark(port=7100)) is None
