"""`penstock init`: a pipeline file to begin with, and what its source needs."""

import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap

import click
import yaml

from penstock.config.explain import default_of, descriptions
from penstock.model.errors import SettingsError
from penstock.model.settings import Settings
from penstock.process.plugins import plugin

_FILE = """\
# {title}
# The changes go to NATS JetStream. Next: penstock check FILE, then penstock run FILE.
# ${{NAME:-DEFAULT}} is the environment variable NAME, or DEFAULT if it is unset or empty.
#
# {needs}
name: {name}
backends:
  - {source}
sink:
  type: jetstream
  url: ${{NATS_URL:-nats://localhost:4222}}
  # The stream (made if missing), and the subject of its messages.
  stream: {stream}
  subject: "{name}.{subject}.{{operation}}"
  # msgpack, or json.
  encoding: msgpack
# The dashboard: http://127.0.0.1:9090/ui/. Its buttons, and clients on other hosts, need a token.
# ops:
#   token: ${{OPS_TOKEN}}
# A snapshot of the existing rows, once at the first start.
# snapshot: initial
# The folder of positions and dead letters; for several machines see `positions`.
# state: ./penstock-state
"""
NAME = "shop"
_VALUES = {
    "postgres": {
        "connection": "${PG_URL:-postgresql://penstock:change-me@localhost:5432/shop}",
        "slot": "shop",
        "publication": "shop",
    },
    "mongodb": {
        "connection": "${MONGO_URL:-mongodb://penstock:change-me@localhost/?authSource=admin}",
        "database": "shop",
    },
    "dynamodb": {"table": "orders", "region": "${AWS_REGION:-eu-central-1}"},
    "cosmos": {
        "endpoint": "${COSMOS_ENDPOINT:-https://localhost:8081/}",
        "key": "${COSMOS_KEY:-Y2hhbmdlLW1l}",
        "database": "shop",
        "container": "orders",
    },
}
_NEEDS = {
    "postgres": """\
Run this once, as a superuser in the database; then restart the server:
    ALTER SYSTEM SET wal_level = logical;
    ALTER SYSTEM SET max_slot_wal_keep_size = '50GB';
    CREATE ROLE penstock LOGIN REPLICATION PASSWORD 'change-me';
    GRANT CONNECT ON DATABASE shop TO penstock;
    CREATE PUBLICATION shop FOR TABLE customers, orders;
    GRANT SELECT ON customers, orders TO penstock; -- for snapshots only
Add to pg_hba.conf: hostssl shop penstock 10.0.0.0/8 scram-sha-256""",
    "mongodb": """\
The server must be a replica set or a sharded cluster. Run this once, in mongosh:
    db.getSiblingDB("admin").runCommand({createRole: "penstock", privileges: [{resource: \
{db: "shop", collection: ""}, actions: ["find", "changeStream", "listCollections"]}, {resource: \
{db: "local", collection: "system.replset"}, actions: ["find"]}, {resource: {db: "config", \
collection: "version"}, actions: ["find"]}], roles: [{role: "read", db: "local"}]})
    db.getSiblingDB("admin").runCommand({createUser: "penstock", pwd: "change-me", roles: \
[{role: "penstock", db: "admin"}]})
    db.getSiblingDB("admin").runCommand({replSetResizeOplog: 1, minRetentionHours: 48})""",
    "dynamodb": """\
Run this once:
    aws dynamodb update-table --table-name orders \
--stream-specification StreamEnabled=true,StreamViewType=NEW_AND_OLD_IMAGES
penstock's role needs dynamodb:ListStreams of *, dynamodb:DescribeStream, GetShardIterator and
GetRecords of arn:aws:dynamodb:REGION:ACCOUNT:table/orders/stream/*, and for snapshots
dynamodb:DescribeTable and Scan of arn:aws:dynamodb:REGION:ACCOUNT:table/orders.""",
    "cosmos": """\
penstock needs the account's read-only key, or (without `key`) the data plane's reader role:
    az cosmosdb sql role assignment create --account-name ACCOUNT --resource-group GROUP \
--role-definition-name "Cosmos DB Built-in Data Reader" --scope / --principal-id PRINCIPAL""",
}  # fmt: skip


@click.command("init")
@click.argument("source", type=click.Choice(list(_VALUES)))
@click.option(
    "--name", default=NAME, show_default=True,
    help="Name of the pipeline, and of the database: letters, digits, _.",
)  # fmt: skip
@click.option("--to", type=click.Path(path_type=Path), help="The file to write.")
def command(*, source: str, name: str, to: Path | None) -> None:
    """Print a pipeline file for SOURCE, with all keys of the source, and what the source needs."""
    if not re.fullmatch("[a-z_][a-z0-9_]{0,40}", name):
        raise SettingsError(
            f"{name!r} can't be the name of a database, a slot and a stream", "cli",
            hint="write at most 41 lower case letters, digits and _, with no digit at the start",
        )  # fmt: skip
    text = pipeline_file(source, name)
    if to is None:
        click.echo(text, nl=False)
        return
    try:
        with to.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise SettingsError(
            f"can't write {to}: {error.strerror}", "cli", hint="name a new file"
        ) from None
    click.echo(f"next: penstock check {to}")


def pipeline_file(source: str, name: str = NAME) -> str:
    """The text of the file; what the source needs is for the database `name`."""
    model: type[Settings] = plugin("feeds", source).settings
    values = {key: _called(value, name) for key, value in _VALUES[source].items()}
    return _FILE.format(
        title=" ".join((model.__doc__ or "").split()),
        needs=_called(_NEEDS[source], name).replace("\n", "\n# "),
        source="\n    ".join(_keys(model, {"name": "default", "type": source, **values})),
        name=name,
        stream=name.upper(),
        subject="{collection}"
        if source in ("postgres", "mongodb")
        else "{source_partition}.{collection}",
    )


def _called(text: str, name: str) -> str:
    return re.sub(rf"\b{NAME}\b", name, text)


def _keys(model: type[Settings], values: Mapping[str, str]) -> list[str]:
    """The lines of every key: those of `values` first, the others as comments."""
    found, lines = descriptions(model), []
    for name in sorted(model.model_fields, key=lambda name: name not in values):
        lines += [f"# {line}" for line in wrap(found.get(name, ""), 94)]
        if name in values:
            lines.append(f"{name}: {values[name]}")
        else:
            default = yaml.safe_dump([default_of(model, name)], default_flow_style=True)
            lines.append(f"# {name}: {default[1:-2]}")
    return lines
