"""`penstock bridge`: one slot to one stream, by flags and environment, as the bridge's users know
them."""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import click

from penstock.cli.options import log_format
from penstock.cli.run import serve
from penstock.config import Pipeline, build_pipeline
from penstock.model.errors import SettingsError
from penstock.ops.logs import Format

_REQUIRED = ("PG_HOST", "PG_DB", "POSTGRES_BRIDGE_USER", "POSTGRES_BRIDGE_PASSWORD", "NATS_HOST")
_LOGIN = ("NATS_BRIDGE_USER", "NATS_BRIDGE_PASSWORD")


@click.command("bridge")
@click.option("--slot", required=True, help="Replication slot; created if missing.")
@click.option("--pub", "publication", required=True, help="Publication; must exist.")
@click.option(
    "--port", default=9090, show_default=True, help="Ops port on loopback; 0: a free one."
)
@click.option("--json", "as_json", is_flag=True, help="JSON messages; otherwise MessagePack.")
@click.option("--stream", default="CDC", show_default=True, help="Stream; created if missing.")
@click.option(
    "--subject", default="cdc.{collection}.{operation}", show_default=True, help="Of each message."
)
@click.option("--zstd", "is_compressed", is_flag=True, help="Compress chunks of snapshots.")
@log_format
def command(*, as_json: bool, is_compressed: bool, log_format: Format | None, **given: Any) -> None:
    """Follow a PostgreSQL slot into a NATS stream, configured by flags and the environment.

    \b
    PG_HOST, PG_PORT (5432), PG_DB
    POSTGRES_BRIDGE_USER, POSTGRES_BRIDGE_PASSWORD
    NATS_HOST, NATS_PORT (4222)
    NATS_BRIDGE_USER, NATS_BRIDGE_PASSWORD (both or neither)

    The same as a pipeline file with one backend; /metrics also serves the bridge's own series.
    """
    pipeline = bridge_pipeline(
        os.environ,
        encoding="json" if as_json else "msgpack",
        compression="zstd" if is_compressed else "none",
        **given,
    )
    serve(pipeline, log_format=log_format, bridge_metrics=True)


def bridge_pipeline(
    environment: Mapping[str, str],
    *,
    slot: str,
    publication: str,
    port: int = 9090,
    encoding: str = "msgpack",
    stream: str = "CDC",
    subject: str = "cdc.{collection}.{operation}",
    compression: str = "none",
) -> Pipeline:
    """The pipeline that the flags and the environment mean; raises SettingsError."""
    _verify(environment)
    passwords = [environment.get("POSTGRES_BRIDGE_PASSWORD", ""), environment.get(_LOGIN[1], "")]
    return build_pipeline(
        {
            "name": slot,
            "backends": [
                {
                    "name": "default",
                    "type": "postgres",
                    "connection": _postgres(environment),
                    "slot": slot,
                    "publication": publication,
                }
            ],
            "sink": {
                "type": "jetstream",
                "url": _nats(environment),
                "stream": stream,
                "subject": subject,
                "encoding": encoding,
            },
            "ops": {"port": port},
            "snapshot": {"compression": compression},
        },
        name="penstock bridge",
        secrets=passwords,
    )


def _verify(environment: Mapping[str, str]) -> None:
    missing = [name for name in _REQUIRED if not environment.get(name)]
    given = [name for name in _LOGIN if environment.get(name)]
    if len(given) == 1:
        missing += [name for name in _LOGIN if name not in given]
    if missing:
        one = len(missing) == 1
        raise SettingsError(
            f"the environment variable{'' if one else 's'} {', '.join(missing)}"
            f" {'is' if one else 'are'} not set", "cli", hint="see penstock bridge --help",
        )  # fmt: skip
    for name in ("PG_PORT", "NATS_PORT"):
        if not environment.get(name, "1").isdecimal():
            raise SettingsError(f"the environment variable {name} is not a port number", "cli")


def _postgres(environment: Mapping[str, str]) -> str:
    login = ":".join(_quoted(environment[f"POSTGRES_BRIDGE_{n}"]) for n in ("USER", "PASSWORD"))
    host = _host(environment["PG_HOST"], environment.get("PG_PORT", "5432"))
    return f"postgresql://{login}@{host}/{_quoted(environment['PG_DB'])}"


def _nats(environment: Mapping[str, str]) -> str:
    login = ""
    if environment.get(_LOGIN[0]):
        login = ":".join(_quoted(environment[name]) for name in _LOGIN) + "@"
    return f"nats://{login}{_host(environment['NATS_HOST'], environment.get('NATS_PORT', '4222'))}"


def _host(host: str, port: str) -> str:
    """`host:port`; an IPv6 address gets its brackets, a host that brings a port keeps it."""
    if host.count(":") > 1 and not host.startswith("["):
        host = f"[{host}]"
    return host if host.rpartition("]")[2].count(":") == 1 else f"{host}:{port}"


def _quoted(text: str) -> Any:
    return quote(text, safe="")
