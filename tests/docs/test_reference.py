"""The reference manual is true: every key, default, endpoint, series and option, and no other."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

import click
import pytest
import yaml
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from penstock.cli import _COMMANDS, main
from penstock.cli.bridge import _LOGIN, _REQUIRED, _URLS
from penstock.cli.bridge_series import BRIDGE_SERIES
from penstock.config import Pipeline, build_pipeline, parse_pipeline
from penstock.feeds.cosmos.following import CAUSES as CAUSES_OF_COSMOS
from penstock.feeds.dynamodb.streams import CAUSES as CAUSES_OF_DYNAMODB
from penstock.feeds.postgres.history import CAUSES
from penstock.feeds.shared import LINEAGE_BROKEN
from penstock.leases import open_store
from penstock.ops.logs import metrics_fields
from penstock.ops.requests import Access
from penstock.ops.respond import ANSWERS
from penstock.ops.thresholds import Webhook
from penstock.process.plugins import known, plugin
from penstock.service.action_api import ActionApi
from penstock.service.actions import Actions, Operated
from tests.docs import errors
from tests.docs.manual_tables import EMPTY, rows, without_links, written

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


class Row(NamedTuple):
    """One row of a table: what its first cell quotes, and the cells."""

    key: str
    cells: tuple[str, ...]


def tables(page: str) -> dict[str, list[Row]]:
    """Heading -> the rows of the tables under it, without their heads."""
    found: dict[str, list[Row]] = {}
    heading = ""
    for line in (REFERENCE / page).read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        cells = tuple(cell.strip() for cell in line.strip().strip("|").split(" | "))
        quoted = re.match(r"`([^`]+)`", cells[0])
        if line.startswith("| ") and quoted:
            found.setdefault(heading, []).append(Row(quoted[1], cells))
    return found


PIPELINE = tables("pipeline.md")
OPERATIONS = tables("operations.md")
CLI = tables("cli.md")
TEXT = (REFERENCE / "cli.md").read_text()
GAPS = {*CAUSES, *CAUSES_OF_COSMOS, *CAUSES_OF_DYNAMODB, LINEAGE_BROKEN}


def leaves(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from leaves(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, field


def pipeline_fields() -> dict[str, FieldInfo]:
    found = {
        key: field
        for key, field in leaves(Pipeline, "")
        if not key.startswith(("sink.", "backends"))
    }
    backends, sink = Pipeline.model_fields["backends"], Pipeline.model_fields["sink"]
    step = get_args(Pipeline.model_fields["transform"].annotation)[0]
    webhook = dict(leaves(Webhook, "ops.notify[]."))
    steps = dict(leaves(step, "transform[]."))
    return found | {"backends": backends, "sink": sink} | steps | webhook


def plugged(kind: str, name: str, prefix: str, shared: set[str]) -> dict[str, FieldInfo]:
    fields = dict(leaves(plugin(kind, name).settings, prefix))
    return {key: field for key, field in fields.items() if key not in shared}


SECTIONS: dict[str, dict[str, FieldInfo]] = {
    "The pipeline": pipeline_fields(),
    **{
        f"A backend of `type: {name}`": plugged(
            "feeds", name, "backends[].", {"backends[].name", "backends[].type"}
        )
        for name in known("feeds")
    },
    **{
        f"A sink of `type: {name}`": plugged("sinks", name, "sink.", {"sink.type"})
        for name in known("sinks")
    },
}


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_key_is_documented_and_no_other(heading: str) -> None:
    assert sorted(row.key for row in PIPELINE[heading]) == sorted(SECTIONS[heading])


@pytest.mark.parametrize(
    ("field", "row"),
    [
        pytest.param(SECTIONS[heading][row.key], row, id=f"{heading}: {row.key}")
        for heading in SECTIONS
        for row in PIPELINE[heading]
        if row.key in SECTIONS[heading]
    ],
)
def test_every_default_is_the_one_documented(field: FieldInfo, row: Row) -> None:
    documented = row.cells[2]
    if field.is_required():
        assert documented == "required"
    elif documented == "none":
        assert field.default is None
    elif row.key not in ("state", "positions"):  # made from other keys
        kind: Any = (
            Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        )
        value = TypeAdapter(kind).validate_python(yaml.safe_load(documented.strip("`")))
        assert value == field.get_default(call_default_factory=True, validated_data={})


def test_the_keys_of_every_backend_and_sink_are_documented() -> None:
    keys = [f"backends[].{key}" for key in ("name", "type", "partitions", "max_gap", "on_error")]
    assert [row.key for row in PIPELINE["Every backend"]] == keys
    assert [row.key for row in PIPELINE["Every sink"]] == ["sink.type"]


def test_every_positions_store_is_documented_and_opens_by_its_url() -> None:
    rows = PIPELINE["Positions stores"]
    schemes = [name for row in rows for name in re.findall(r"`([^`]+)`", row.cells[0])]
    assert sorted(schemes) == known("stores")
    for url in (url for row in rows for url in re.findall(r"`([^`]+)`", row.cells[2])):
        open_store(url).close()


def test_the_example_is_a_pipeline() -> None:
    text = (REFERENCE / "pipeline.md").read_text()
    example = text.partition("```yaml\n")[2].partition("```")[0]
    environment = {"PG_URL": "postgresql://h/db", "NATS_URL": "nats://h"}
    assert parse_pipeline(example, environment=environment).name == "shop"


def test_every_endpoint_is_documented() -> None:
    document = {"backends": [{"type": "memory"}], "sink": {"type": "jetstream", "url": "nats://h"}}
    pipeline = build_pipeline(document, name="test", secrets=[])
    api = ActionApi(Actions(), Access(), lambda by: Operated(pipeline=pipeline, by=by))
    wanted = [(path, method) for path, (method, _, _) in ANSWERS.items()]
    wanted += [(each.path, each.method) for each in api.endpoints() if each.what]
    documented = [(row.key, row.cells[1]) for row in OPERATIONS["Endpoints"]]
    assert sorted(documented) == sorted([*wanted, ("/events", "GET")])


def test_the_tables_of_the_status_and_of_the_metrics_say_what_is_declared() -> None:
    """Written by `python -m tests.docs.manual_tables`."""
    declared: dict[str, list[str]] = {}
    for heading, row in rows():
        declared.setdefault(heading, []).append(row)
    found = written()
    assert {
        heading: [without_links(row) for row in found[heading]] for heading in declared
    } == declared


def test_every_cause_of_a_gap_is_documented() -> None:
    assert {row.key for row in OPERATIONS["Lost history"]} == GAPS


@pytest.mark.slow
def test_every_error_is_documented_under_its_code() -> None:
    assert errors.PAGE.read_text() == errors.page(), "python -m tests.docs.errors"


def test_no_code_has_a_name_in_it() -> None:
    codes = re.findall(r"(?m)^### (.+)$", errors.PAGE.read_text())
    assert [code for code in codes if not re.fullmatch(r"[a-z_]+\.[a-z]+(-[a-z]+)*", code)] == []


def test_every_series_of_the_bridge_is_documented() -> None:
    documented = [(row.key, row.cells[1]) for row in OPERATIONS["The bridge's series"]]
    assert documented == [(name, kind) for name, kind, _ in BRIDGE_SERIES]


def test_every_field_of_the_metrics_line_is_documented() -> None:
    assert [row.key for row in OPERATIONS["Logs"]] == list(metrics_fields(EMPTY))


def command(name: str) -> click.Command:
    found = main.get_command(click.Context(main), name)
    assert found is not None
    return found


def heading_of(name: str) -> str:
    return next(h for h in re.findall(r"^## (.*)$", (REFERENCE / "cli.md").read_text(), re.M)
                if h.split()[1].strip("`") == name)  # fmt: skip


@pytest.mark.parametrize("name", _COMMANDS)
def test_every_option_is_documented_with_its_default(name: str) -> None:
    found = command(name)
    if not isinstance(found, click.Group):
        documented(found, heading_of(name))
        return
    for below, each in found.commands.items():
        start = f"`penstock {name} {below} "
        documented(
            each, next(h for h in re.findall(r"^### (.*)$", TEXT, re.M) if h.startswith(start))
        )


def documented(found: click.Command, heading: str) -> None:
    options = {param.opts[0]: param for param in found.params if isinstance(param, click.Option)}
    rows = {row.key: row for row in CLI.get(heading, []) if row.key.startswith("--")}
    assert rows.keys() == options.keys()
    for key, row in rows.items():
        default = options[key].default
        if options[key].required:
            assert row.cells[1] == "required"
        elif isinstance(default, bool):
            assert row.cells[1] == ("on" if default else "off")
        elif isinstance(default, str | int | float):
            assert row.cells[1].startswith(f"`{default}`")


def test_every_variable_of_the_bridge_is_documented() -> None:
    rows = [row for row in CLI[heading_of("bridge")] if row.key.isupper()]
    more = {"PG_PORT", "NATS_PORT", "NATS_NKEY_SEED", "BRIDGE_PORT", *_URLS.values()}
    assert {row.key for row in rows} == {*_REQUIRED, *_LOGIN, *more}
    assert {row.key for row in rows if row.cells[1] == "required"} == set(_REQUIRED)
