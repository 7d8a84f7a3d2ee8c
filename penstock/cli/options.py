"""What commands share: arguments and options, the file of either kind, lists, and a question to the
ops server of a pipeline that may run on this machine."""

import http.client
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from penstock.config import Deployment, Ops, Pipeline, keys_of, load_file
from penstock.model.errors import Unavailable
from penstock.nats.settings import NatsSettings
from penstock.processor.settings import ProcessorFile

_PATIENCE = 10.0  # seconds that the ops server may take
_LONGEST = 16 * 2**20  # bytes of its answer: more is not ours

file_argument = click.argument("file", type=click.Path(path_type=Path))
json_list = click.option("--json", "as_json", is_flag=True, help="A JSON list.")
log_format = click.option(
    "--log-format",
    type=click.Choice(["logfmt", "json", "console"]),
    help="Of the log on stderr; default: console on a terminal, else logfmt.",
)
state_option = click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the stored state; replaces the file's `state`.",
)

# Setting -> the variable, as the tools of NATS call it, and what the file has.
_LOGIN_FILES = {
    "credentials": ("NATS_CREDS", "File with a JWT and its seed (.creds)."),
    "nkey": ("NATS_NKEY", "File with the seed of an nkey."),
    "tls_ca": ("NATS_CA", "PEM file of the authorities; default: the system's."),
    "tls_cert": ("NATS_CERT", "PEM file of the client's certificate."),
    "tls_key": ("NATS_KEY", "PEM file of the certificate's key."),
}


_WAYS = {
    "domain": "JetStream domain, across a leaf node.",
    "api_prefix": "Prefix of another account's JetStream, in place of $JS.API.",
    "inbox_prefix": "Prefix of subjects of answers, in place of _INBOX.",
}


def nats_login(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds how a command without a pipeline file logs in to NATS; it takes them as `**login`."""
    for name, text in reversed(_WAYS.items()):
        command = click.option(f"--{name.replace('_', '-')}", help=text)(command)
    kind = click.Path(exists=True, dir_okay=False)
    for name, (variable, text) in reversed(_LOGIN_FILES.items()):
        option = click.option(f"--{name.replace('_', '-')}", envvar=variable, type=kind, help=text)
        command = option(command)
    return command


def settings_of(url: str, login: Mapping[str, str | None]) -> NatsSettings:
    seed = {"nkey": Path(login["nkey"]).read_text().strip()} if login["nkey"] else {}
    given = {name: value for name, value in login.items() if value is not None}
    return NatsSettings.model_validate({"url": url, **given, **seed})


def overrides(state: Path | None) -> dict[str, str]:
    """What `--state` replaces in the file."""
    return {"state": str(state)} if state else {}


def load_deployment(file: Path, state: Path | None) -> Deployment:
    """The pipeline in FILE, or the processor where it has neither a sink nor Spark. `state`
    replaces the file's. Raises SettingsError."""
    keys = keys_of(file)
    is_processor = "processor" in keys or ("backends" in keys and not keys & {"sink", "spark"})
    model: type[Deployment] = ProcessorFile if is_processor else Pipeline
    return load_file(file, model, overrides=overrides(state))


def print_list(
    rows: Sequence[Mapping[str, Any]],
    *,
    as_json: bool,
    none: str,
    head: Sequence[str],
    cells: Iterable[Sequence[str]],
) -> None:
    """Prints the rows as JSON, or their cells in columns; `none` where there is no row."""
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        click.echo(columns(head, cells) if rows else none)


def columns(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Every column is as wide as its widest cell, never cut: a pager or `cut` can do that."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


class OpsClient:
    """Asks an ops server, of a pipeline file or below a path."""

    def __init__(self, bind: str, port: int, *, path: str = "", token: str = "") -> None:
        self._bind, self._port, self._path, self._token = bind, port, path, token

    @classmethod
    def of(cls, ops: Ops) -> "OpsClient":
        """With the token that reads and, where there is one, acts."""
        token = ops.token or ops.read_token
        return cls(ops.bind, ops.port, token="" if token is None else token.get_secret_value())

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JSON object it answers with; empty where there is none. A `body` makes it a POST."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self._bind, self._bind)  # noqa: S104
        method, data = ("GET", None) if body is None else ("POST", json.dumps(body))
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        with closing(http.client.HTTPConnection(host, self._port, timeout=_PATIENCE)) as connection:
            try:
                connection.request(method, self._path + path, data, headers)
                answer = json.loads(connection.getresponse().read(_LONGEST))
            except (OSError, http.client.HTTPException, ValueError):
                return {}
        return answer if isinstance(answer, dict) else {}

    def answer(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The same; raises Unavailable where nothing answers."""
        if not (found := self.ask(path, body)):
            raise Unavailable(
                f"no ops server answers on {self._bind}:{self._port}",
                "cli.no-ops-server",
                hint="does the pipeline run here? give its file, or the URL of its ops server",
            )
        return found
