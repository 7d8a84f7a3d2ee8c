"""`penstock bridge`: one slot to one stream, by flags and environment, as the bridge's users know
them."""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import click

from penstock.cli.options import log_format
from penstock.cli.run import serve
from penstock.config import Pipeline, build_pipeline
from penstock.model.errors import SettingsError
from penstock.ops.logs import Format

_DATABASE = ("PG_HOST", "PG_DB", "POSTGRES_BRIDGE_USER", "POSTGRES_BRIDGE_PASSWORD")
_REQUIRED = (*_DATABASE, "NATS_HOST")
# What later versions of the bridge have in their place.
_URLS = {"PG_HOST": "DATABASE_URL", "NATS_HOST": "NATS_URL"}
_LOGIN = ("NATS_BRIDGE_USER", "NATS_BRIDGE_PASSWORD")


@click.command("bridge")
@click.option("--slot", required=True, help="Replication slot; made if missing.")
@click.option("--pub", "publication", required=True, help="Publication; must exist.")
@click.option(
    "--port",
    default=9090,
    show_default=True,
    envvar="BRIDGE_PORT",
    help="Ops port on loopback; 0: a free one.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON messages; otherwise MessagePack.")
@click.option("--stream", default="CDC", show_default=True, help="Stream; made if missing.")
@click.option(
    "--subject",
    default="cdc.{collection}.{operation}",
    show_default=True,
    help="Subject of each message.",
)
@click.option(
    "--layout",
    default="bridge",
    show_default=True,
    help="Layout of a message: the bridge's, or penstock.",
)
@click.option(
    "--snapshot-max-age",
    default="30m",
    show_default=True,
    help="How long reading a table may take; the stream keeps changes for twice that.",
)
@click.option("--zstd", "is_compressed", is_flag=True, help="Compress chunks of snapshots.")
@log_format
def command(*, as_json: bool, is_compressed: bool, log_format: Format | None, **given: Any) -> None:
    """Publish a PostgreSQL slot to a NATS stream, configured by flags and the environment.

    \b
    PG_HOST, PG_PORT (5432), PG_DB
    POSTGRES_BRIDGE_USER, POSTGRES_BRIDGE_PASSWORD
    NATS_HOST, NATS_PORT (4222)
    NATS_BRIDGE_USER, NATS_BRIDGE_PASSWORD (both or neither)
    Or DATABASE_URL, NATS_URL, NATS_NKEY_SEED, BRIDGE_PORT.

    The command is the same as a pipeline file with one backend; /metrics, /status and stdout also
    have the values that the bridge's have.
    """
    pipeline = bridge_pipeline(
        os.environ,
        encoding="json" if as_json else "msgpack",
        compression="zstd" if is_compressed else "none",
        **given,
    )
    serve(lambda: pipeline, log_format=log_format, bridge="all")


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
    layout: str = "bridge",
    snapshot_max_age: str = "30m",
) -> Pipeline:
    """The pipeline that the flags and the environment mean; raises SettingsError."""
    _verify(environment)
    names = "POSTGRES_BRIDGE_PASSWORD", _LOGIN[1], "NATS_NKEY_SEED", *_URLS.values()
    secrets = [text for text in map(environment.get, names) if text]
    secrets += [unquote(urlsplit(text).password or "") for text in secrets if "://" in text]
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
                **_nats(environment),
                "layout": layout,
                "stream": stream,
                "subject": subject,
                "encoding": encoding,
            },
            "ops": {"port": port},
            "snapshot": {"compression": compression, "max_age": snapshot_max_age},
        },
        name="penstock bridge",
        secrets=secrets,
    )


def _verify(environment: Mapping[str, str]) -> None:
    wanted = [
        name for name in _REQUIRED
        if not _url(environment, "PG_HOST" if name in _DATABASE else "NATS_HOST")
    ]  # fmt: skip
    missing = [name for name in wanted if not environment.get(name)]
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


def _url(environment: Mapping[str, str], host: str) -> str:
    """The URL in place of a host; "" where the host is given: another program may have the URL."""
    return "" if environment.get(host) else environment.get(_URLS[host], "")


def _postgres(environment: Mapping[str, str]) -> str:
    if url := _url(environment, "PG_HOST"):
        return url
    login = ":".join(_quoted(environment[f"POSTGRES_BRIDGE_{n}"]) for n in ("USER", "PASSWORD"))
    host = _host(environment["PG_HOST"], environment.get("PG_PORT", "5432"))
    return f"postgresql://{login}@{host}/{_quoted(environment['PG_DB'])}"


def _nats(environment: Mapping[str, str]) -> dict[str, str]:
    """How the sink reaches NATS."""
    url = _url(environment, "NATS_HOST")
    if not url:
        host = _host(environment["NATS_HOST"], environment.get("NATS_PORT", "4222"))
        login = ":".join(_quoted(environment[name]) for name in _LOGIN if environment.get(name))
        url = f"nats://{login}@{host}" if login else f"nats://{host}"
    elif environment.get(_LOGIN[0]) and not urlsplit(url).username:
        return {"url": url, "user": environment[_LOGIN[0]], "password": environment[_LOGIN[1]]}
    seed = environment.get("NATS_NKEY_SEED", "")
    return {"url": url, "nkey": seed} if seed else {"url": url}


def _host(host: str, port: str) -> str:
    """`host:port`; an IPv6 address gets its brackets, a host that brings a port keeps it."""
    if host.count(":") > 1 and not host.startswith("["):
        host = f"[{host}]"
    return host if host.rpartition("]")[2].count(":") == 1 else f"{host}:{port}"


def _quoted(text: str) -> Any:
    return quote(text, safe="")
