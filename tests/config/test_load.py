"""The pipeline file: what is read, and what is said about mistakes."""

import pickle
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from penstock.config import Pipeline, load_pipeline, parse_pipeline
from penstock.config.map_store import MapStore
from penstock.microbatch.options import read_source
from penstock.model.errors import SettingsError
from penstock.process.plugins import plugin
from penstock.stream.opening import feed_of

# The example of the manual, with our own plug-ins.
FILE = """\
name: shop
backends:
  - name: default
    type: pond
    connection: ${PG_URL}
    slot: shop
    publication: shop
    tables: [public.customers]
    start: slot
transform:
  - sql: SELECT * FROM changes WHERE collection <> 'audit'
sink:
  type: lake
  url: ${NATS_URL}
  stream: CDC
  subject: "cdc.{collection}.{operation}"
  encoding: msgpack
  batch: {max_size: 500, max_wait: 100ms, max_bytes: 256KiB}
positions: sqlite:///var/shop.db
checkpoint: {interval: 5s, event_count: 1000}
ops: {bind: 127.0.0.1, port: 9090}
spark: {master: "local[*]", trigger: 0s, conf: {}}
"""
ENVIRONMENT = {
    "PG_URL": "postgresql://u:hunter22@localhost/shop",
    "NATS_URL": "nats://localhost:4222",
}
SMALL = """\
backends:
  - {type: pond}
sink: {type: lake}
"""


def read(text: str, **environment: str) -> Pipeline:
    return parse_pipeline(text, environment=ENVIRONMENT | environment)


def mistakes(text: str, **environment: str) -> list[str]:
    with pytest.raises(SettingsError) as error:
        read(text, **environment)
    return error.value.message.splitlines()


def test_the_whole_file_is_read() -> None:
    found = read(FILE)
    assert (found.name, found.backends[0].name, found.backends[0].type) == (
        "shop",
        "default",
        "pond",
    )
    assert found.transform[0].sql == "SELECT * FROM changes WHERE collection <> 'audit'"
    assert found.sink.type == "lake"
    assert (found.positions, found.checkpoint.interval) == ("sqlite:///var/shop.db", 5.0)
    assert (found.ops.bind, found.ops.port, found.spark.trigger) == ("127.0.0.1", 9090, 0.0)


@pytest.mark.slow
def test_a_pipeline_does_not_print_its_secrets() -> None:
    assert "hunter22" not in repr(read(FILE)) + str(read(FILE).model_dump())


@pytest.mark.slow
def test_a_pipeline_pickles() -> None:
    assert pickle.loads(pickle.dumps(read(FILE))) == read(FILE)


def test_a_pipeline_builds_its_feeds_and_its_sink() -> None:
    found = read(FILE)
    assert found.backends[0].feed().settings == found.backends[0].settings  # type: ignore[attr-defined]
    assert found.sink.sink().settings == found.sink.settings  # type: ignore[attr-defined]


def test_a_feed_that_lacks_defaults_is_told_to_inherit_them() -> None:
    found = read(SMALL.replace("type: pond", "type: oil, name: oil")).backends[0]
    for build in (
        found.feed,
        lambda: read_source({"backend": "oil", "name": "oil"}),
        lambda: feed_of("oil", {"name": "oil"}),
        lambda: feed_of(plugin("feeds", "oil").build(found.settings), {}),
    ):
        with pytest.raises(SettingsError) as error:
            build()
        assert error.value.message.startswith("the feed penstock_test_waters.Oil lacks backend, ")
        assert error.value.message.endswith(", record_reader")
        assert "delays" not in error.value.message
        assert "inherit from penstock.feeds.Feed" in error.value.hint


def test_an_unknown_key_of_a_feed_names_the_nearest() -> None:
    assert mistakes(FILE.replace("slot: shop", "sloot: shop")) == [
        "pipeline.yaml:6: backends[0].sloot: unknown key; did you mean 'slot'?",
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: shop", "nam: shop", "1: nam: unknown key; did you mean 'name'?"),
        ("name: shop", "name: a/b", "1: name: may have letters, digits, '_' and '-' only"),
        ("interval: 5s", "intervall: 5s", "20: checkpoint.intervall: unknown key; did you mean"),
        ("interval: 5s", "interval: 5x", "20: checkpoint.interval: '5x' is not a duration"),
        ("max_size: 500", "max_sise: 500", "18: sink.batch.max_sise: unknown key; did you mean"),
        ("port: 9090", "port: 99999", "21: ops.port: input should be less than or equal to 65535"),
        ("type: pond", "type: pomd", "4: backends[0].type: there is no feed 'pomd'; did you mean"),
        ("type: pond", "type: dry", "4: backends[0].type: 'dry' needs the module 'a_driver_that"),
        (
            "  type: lake\n",
            "",
            "12: sink.type: is missing; known: delta, jetstream, lake, memory, ",
        ),
        ("- name: default", "- name: a.b", "3: backends[0].name: may have letters, digits"),
        ("- sql:", "- sqll:", "11: transform[0].sqll: unknown key; did you mean 'sql'?"),
        (
            "checkpoint: {interval: 5s, event_count: 1000}",
            "checkpoint: 5",
            "20: checkpoint: must be",
        ),
        ("name: shop", "name: [", "not valid YAML"),
        ("name: shop", "name: a\nname: b", "2: name: is written twice"),
        ("${PG_URL}", "${PG_URI}", "5: backends[0].connection: the environment variable PG_URI"),
        ("${PG_URL}", "${PG URL}", "5: backends[0].connection: a variable is written ${NAME} or"),
        ("${PG_URL}", "${PG_URL", "5: backends[0].connection: a variable is written ${NAME} or"),
    ],
)
def test_a_mistake_has_its_line_and_place(old: str, new: str, message: str) -> None:
    assert old in FILE
    assert any(message in line for line in mistakes(FILE.replace(old, new, 1)))


def test_all_mistakes_come_at_once_in_the_order_of_the_file() -> None:
    text = FILE.replace("slot: shop", "slot: [SHOP]").replace("9090", "x").replace("500", "a")
    lines = mistakes(text.replace("name: shop", "names: shop"))
    assert [line.split(":")[1] for line in lines] == sorted(
        (line.split(":")[1] for line in lines), key=int
    )
    assert [line.split(": ")[1] for line in lines] == [
        "names",
        "backends[0].slot",
        "sink.batch.max_size",
        "ops.port",
    ]


@pytest.mark.parametrize("text", ["", "- a", "hello", "[]"])
def test_a_file_that_is_no_map_is_an_error(text: str) -> None:
    assert mistakes(text)[0].endswith("must be a map with backends and a sink")


def test_backends_and_sink_are_required() -> None:
    assert mistakes("name: x") == [
        "pipeline.yaml:1: backends: is missing",
        "pipeline.yaml:1: sink: is missing",
    ]


def test_there_must_be_a_backend() -> None:
    assert "backends" in mistakes("backends: []\nsink: {type: lake}")[0]


def test_backend_names_are_unique() -> None:
    two = SMALL.replace("  - {type: pond}", "  - {type: pond}\n  - {type: pond}")
    assert mistakes(two) == [
        "pipeline.yaml:3: backends[1].name: another backend is called 'default';"
        " names are part of event ids"
    ]


def test_there_may_be_several_backends() -> None:
    two = "  - {name: a, type: pond}\n  - {name: b, type: pond}"
    found = read(SMALL.replace("  - {type: pond}", two))
    assert [backend.name for backend in found.backends] == ["a", "b"]


@pytest.mark.slow
def test_an_unset_variable_with_a_default_takes_it() -> None:
    assert read(SMALL + "name: ${NAME:-shop}").name == "shop"
    assert read(SMALL + "name: ${NAME:-shop}", NAME="other").name == "other"
    assert read(SMALL + "name: ${NAME:-shop}", NAME="").name == "shop"


def test_a_variable_may_be_a_number() -> None:
    assert read(SMALL + "ops: {port: '${PORT}'}", PORT="7777").ops.port == 7777


def test_a_variable_can_not_inject_yaml() -> None:
    text = SMALL + "transform:\n  - sql: ${SQL}"
    sql = "x\nsink: {type: other}\n# ${PG_URL}"
    assert read(text, SQL=sql).transform[0].sql == sql


def test_a_doubled_dollar_is_one() -> None:
    assert read(SMALL + "transform: [{sql: '$${X} $5 $$'}]").transform[0].sql == "${X} $5 $"


def test_a_date_stays_text() -> None:
    assert read(SMALL + "name: 2026-01-01").name == "2026-01-01"


def test_sparks_conf_takes_numbers_and_switches() -> None:
    found = read(SMALL + "spark: {conf: {spark.ui.enabled: false, spark.x: 5}}")
    assert found.spark.conf == {"spark.ui.enabled": "false", "spark.x": "5"}


def test_an_anchor_may_be_used_but_not_hold_itself() -> None:
    assert read(SMALL + "checkpoint: &c {interval: 1s}").checkpoint.interval == 1.0
    assert "must not contain itself" in mistakes(SMALL + "transform: &a [*a]")[0]


@pytest.mark.parametrize(
    "text",
    [
        SMALL + "checkpoint: {interval: '${PG_URL}'}",
        SMALL + "ops: {port: '${PG_URL}'}",
        SMALL + "name: ${PG_URL}",
        SMALL + "name: postgresql://u:hunter22@h/db",
        FILE.replace("connection: ${PG_URL}", "connection: u:hunter22@h"),
        FILE.replace("connection: ${PG_URL}", "connection: [u:hunter22@h]"),
        SMALL.replace("{type: pond}", "{type: '${PG_URL}'}"),
        SMALL.replace("{type: pond}", "{name: '${PG_URL}', type: pond}"),
    ],
)
def test_a_mistake_never_repeats_a_secret(text: str) -> None:
    assert "hunter22" not in "\n".join(mistakes(text))


def test_state_and_positions_default_to_the_users_state_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    found = read(SMALL + "name: shop")
    assert found.state == tmp_path / "penstock" / "shop"
    assert found.positions == f"sqlite:///{tmp_path}/penstock/shop/positions.db"


def test_positions_follow_the_state_folder(tmp_path: Path) -> None:
    assert read(SMALL + f"state: {tmp_path}").positions == f"sqlite:///{tmp_path}/positions.db"


@pytest.mark.parametrize("kind", ["pond", "memory", "dynamodb"])
def test_a_limit_of_silence_is_refused_where_it_could_find_nothing(kind: str) -> None:
    own = ", table: shop, region: eu-west-1" if kind == "dynamodb" else ""
    text = f"backends: [{{type: {kind}, max_gap: 5m{own}}}]\nsink: {{type: lake}}\n"
    (mistake,) = mistakes(text)
    assert mistake.startswith("pipeline.yaml:1: backends[0].max_gap: ")
    assert f"finds nothing with {kind}" in mistake


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("postgres", "connection: 'postgresql://h/shop', slot: s, publication: p"),
        ("mongodb", "connection: 'mongodb://h', database: shop"),
    ],
)
def test_a_source_that_tells_its_clock_may_have_a_limit_of_silence(kind: str, own: str) -> None:
    text = f"backends: [{{type: {kind}, max_gap: 5m, {own}}}]\nsink: {{type: lake}}"
    assert read(text).backends[0].max_gap == 300


def test_a_file_that_is_missing_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.yaml: no such file or directory"):
        load_pipeline(tmp_path / "none.yaml")


def test_a_file_that_is_not_utf8_is_a_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="is not UTF-8 text"):
        load_pipeline(file)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        # Realtime keeps micro-batches open, and takes no mode.
        ("spark: {trigger: realtime, mode: rows}", [r"leave spark\.mode out"]),
        (
            "spark: {trigger: realtime}\ntransform: [{sql: SELECT * FROM changes}]",
            ["no rows that a transform could see"],
        ),
        ("spark: {trigger: 1s, mode: packed}", [r"leave spark\.mode out .*of rows"]),
        *((f"ops: {{at_risk: {share}}}", [r"ops\.at_risk"]) for share in ("-0.1", "1", "soon")),
        *(
            (
                f"share: {share}\nleases: {{renew: 5s}}",
                ["leave share and leases out", "many hosts without Spark are penstock process"],
            )
            for share in ("leases", "null")
        ),
    ],
)
def test_a_setting_that_cannot_be_says_what_to_do(more: str, says: list[str]) -> None:
    found = "\n".join(mistakes(SMALL + more))
    assert all(re.search(each, found) for each in says)


@pytest.mark.slow
def test_a_backend_may_have_hash_partitions_of_its_own() -> None:
    text = """
        partitions: 4
        backends:
          - {name: a, type: mongodb, connection: "mongodb://h/shop", partitions: 16}
          - {name: b, type: mongodb, connection: "mongodb://h/shop"}
          - {name: c, type: memory, partitions: 3}
        sink: {type: memory}
    """
    pipeline = parse_pipeline(text, environment={})
    assert [pipeline.hash_partitions(each) for each in pipeline.backends] == [16, 4, 4]
    settings: Any = pipeline.backends[2].settings
    assert settings.partitions == 3, "the memory feed's own"
    with pytest.raises(SettingsError, match=r"backends\[0\]\.partitions"):
        parse_pipeline(text.replace("16", "2000"), environment={})


CONSOLIDATE = """\
backends:
  - {name: shop, type: postgres, connection: "postgresql://h/shop", slot: s, publication: p}
sink:
  type: postgres
  connection: postgresql://h/all
  map: [{backend: shop, tables: {orders: , sales.lines: {partitions: "lines_[0-9]+"}}}]
"""


def test_the_backends_of_a_sink_of_tables_follow_its_map() -> None:
    settings: Any = read(CONSOLIDATE).backends[0].settings
    assert settings.tables == ("public.orders", "sales.~lines_[0-9]+")


def _live(folder: Path, more: str = "") -> str:
    return (
        f"{more}sink: {{type: postgres, connection: postgresql://h/all,"
        f" map: 'sqlite:///{folder}/map.db'}}\n"
    )


@pytest.mark.slow
def test_a_map_in_a_file_of_its_own_has_the_backends(tmp_path: Path) -> None:
    assert read(_live(tmp_path)).backends == (), "the file is made"
    with MapStore(tmp_path / "map.db") as store:
        for name in ("shop", "mall", "own"):
            db = store.add("db", {"name": name})["id"]
            store.add("url", {"db_id": db, "sid": "eu", "url": "postgresql://h/x"})
            if name != "mall":  # which has nothing to follow yet
                store.add("tbl", {"db_id": db, "name": "orders"})
        own = (
            "backends: [{name: own, type: postgres, connection: postgresql://h/own, slot: s},"
            " {name: idle, type: postgres, connection: postgresql://h/idle}]\n"
        )
        found = read(_live(tmp_path, own))
        settings: Any = [each.settings for each in found.backends]
        assert [each.name for each in settings] == ["own", "shop"]
        assert [each.tables for each in settings] == [("public.orders",)] * 2
        assert (settings[0].slot, settings[1].each[0].slot) == ("s", "penstock_shop_eu")
        assert found.map_problems == ("db own: the pipeline file has its sources, and not the map",)
        store.add("tbl", {"db_id": db, "name": "more"})
        again: Any = found.mapped(store.content()).backends
        assert again[0].settings.tables == ("public.orders", "public.more")
        assert again[1] == found.backends[1]


@pytest.mark.slow
def test_a_row_of_the_map_that_another_program_broke_stays_what_it_was(tmp_path: Path) -> None:
    with MapStore(tmp_path / "map.db") as store:
        db = store.add("db", {"name": "shop"})["id"]
        for sid in ("eu", "us"):
            store.add("url", {"db_id": db, "sid": sid, "url": f"postgresql://h/{sid}"})
        for table in ("orders", "more"):
            store.add("tbl", {"db_id": db, "name": table, "filter": "true"})
        before = read(_live(tmp_path))
        with sqlite3.connect(store.path) as connection:
            connection.execute("UPDATE url SET url = 'mysql://h/us' WHERE sid = 'us'")
            connection.execute("UPDATE tbl SET type = 'copy' WHERE name = 'more'")
        store.add("tbl", {"db_id": db, "name": "third"})
        found = before.mapped(store.content())
        (settings,) = [each.settings for each in found.backends]
        assert [each.sid for each in settings.sources] == ["eu", "us"]  # type: ignore[attr-defined]
        (entry,) = found.sink.settings.map  # type: ignore[attr-defined]
        assert {name: options.filter for name, options in entry.tables.items()} == {
            "public.orders": "true", "public.third": "", "public.more": "true",
        }  # fmt: skip
        assert not found.forgets("shop")
        assert len(found.map_problems) == 2
        again = read(_live(tmp_path))  # which knows nothing of before
        assert again.backends[0].settings.tables == ("public.orders", "public.third")  # type: ignore[attr-defined]
        assert not again.forgets("shop")


def test_without_a_map_of_its_own_there_must_be_a_backend(tmp_path: Path) -> None:
    text = _live(tmp_path, "backends: []\n")
    assert read(text).backends == ()
    (wrong,) = mistakes(text.replace("sqlite:///", "mysql:///"))
    assert "sink: map: write a list, or sqlite:///FILE" in wrong


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: shop", "name: mall", "backend mall has no tables in sink.map"),
        (
            'type: postgres, connection: "postgresql://h/shop", slot: s, publication: p',
            "type: memory",
            "backend shop: a sink of type postgres takes the tables of backends of type postgres,"
            " not of memory",
        ),
        ("sink:", "transform: [{sql: SELECT 1}]\nsink:", "write `set` and `filter` of a table"),
        ("lines_[0-9]+", "lines_[", "partitions: no regular expression"),
        ("sales.lines:", "public.orders:", "public.orders of the backend shop is there twice"),
    ],
)
def test_a_map_that_does_not_fit_is_refused(old: str, new: str, message: str) -> None:
    assert old in CONSOLIDATE
    assert message in "\n".join(mistakes(CONSOLIDATE.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            "url: '${HOOK}', when: [gaps]",
            "ops.notify[0].when[0]: must be 'health', 'gap', 'dead-le",
        ),
        ("url: '${HOOK}', when: []", "ops.notify[0].when: names no kind"),
        ("url: '${HOOK}', format: discord", "ops.notify[0].format: must be 'json', 'slack' or 'te"),
        ("url: 'ftp://h/hunter22'", "ops.notify[0].url: is not a URL of http or https"),
        ("url: 'https:///hunter22'", "ops.notify[0].url: is not a URL of http or https"),
        ("url: 'https://h:99999/hunter22'", "ops.notify[0].url: is not a URL of http or https"),
        ("url: 'https://h/hunter22 x'", "ops.notify[0].url: is not a URL of http or https"),
        ("url: 'https://hunter22@h/'", "ops.notify[0].url: must not have a user or a password"),
        ("when: [gap]", "ops.notify[0].url: is missing"),
    ],
)
def test_a_webhook_that_is_wrong_is_refused_and_its_url_not_repeated(
    entry: str, message: str
) -> None:
    text = f"{SMALL}ops: {{notify: [{{{entry}}}]}}\n"
    (found,) = mistakes(text, HOOK="https://h/hunter22")
    assert message in found
    assert "hunter22" not in found


@pytest.mark.parametrize(
    ("url", "form"),
    [
        ("https://hooks.slack.com/services/T/B/x", "slack"),
        ("https://prod-1.westeurope.logic.azure.com:443/workflows/x?sig=y", "teams"),
        ("https://acme.webhook.office.com/webhookb2/x", "teams"),
        ("https://d.environment.api.powerplatform.com:443/powerautomate/x", "teams"),
        ("https://hooks.slack.com.example.org/", "json"),
    ],
)
def test_the_host_says_what_a_webhook_takes(url: str, form: str) -> None:
    (found,) = read(f"{SMALL}ops: {{notify: [{{url: '{url}'}}]}}\n").ops.notify
    assert found.message_format == form
    assert url not in repr(found)
    (chosen,) = read(f"{SMALL}ops: {{notify: [{{url: '{url}', format: json}}]}}\n").ops.notify
    assert chosen.message_format == "json"
