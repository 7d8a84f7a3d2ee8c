"""What commands share: arguments and options, the file of either kind, lists, and a question to the
ops server of a pipeline that may run on this machine."""

import http.client
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from penstock.model.errors import SettingsError, Unavailable

if TYPE_CHECKING:  # `penstock run` starts a JVM before it imports these.
    from penstock.config import Deployment, Ops, Pipeline
    from penstock.nats.settings import NatsSettings
    from penstock.sinks.server import SinkServer

_PATIENCE = 10.0  # seconds that the ops server may take
_LONGEST = 16 * 2**20  # bytes of its answer: more is not ours

file_argument = click.argument("file", type=click.Path(path_type=Path))


def json_option(what: str = "A JSON object.") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds `--json`, which each command takes as `as_json` that prints something for people."""
    return click.option("--json", "as_json", is_flag=True, help=what)


json_list = json_option("A JSON list.")
log_format = click.option(
    "--log-format",
    type=click.Choice(["logfmt", "json", "console"]),
    help="Format of the log on stderr; default: console on a terminal, else logfmt.",
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


# Settings that say who logs in: another login replaces all of them.
_WHO = "user", "password", "token", "nkey", "credentials"


def settings_of(url: str, login: Mapping[str, str | None]) -> "NatsSettings":
    from penstock.nats.settings import NatsSettings

    return NatsSettings.model_validate(_given({"url": url, **login}))


def settings_over(
    server: "NatsSettings", url: str | None, login: Mapping[str, str | None]
) -> "NatsSettings":
    """The settings of a pipeline file, but for what was given on the command line."""
    from penstock.nats.settings import NatsSettings

    known = {name: getattr(server, name) for name in NatsSettings.model_fields}
    given = {name: value for name, value in {"url": url, **login}.items() if is_typed(name)}
    if given.keys() & {*_WHO} or "@" in (given.get("url") or ""):
        known |= dict.fromkeys(_WHO)
    return NatsSettings.model_validate(known | _given(given))


def _given(options: Mapping[str, str | None]) -> dict[str, str]:
    found = {name: value for name, value in options.items() if value is not None}
    seed = {"nkey": Path(found["nkey"]).read_text().strip()} if "nkey" in found else {}
    return found | seed


def is_typed(option: str) -> bool:
    """Whether the command line has an option of the present command: not the environment."""
    source = click.get_current_context().get_parameter_source(option)
    return source is ParameterSource.COMMANDLINE


def published_by(file: Path) -> "tuple[Pipeline, SinkServer]":
    """The pipeline in FILE, and the server with the stream that it publishes to. Raises
    SettingsError."""
    from penstock.config import Pipeline, load_file

    pipeline = load_file(file, Pipeline)
    if (server := pipeline.sink.server()) is None:
        raise SettingsError(
            f"{file} has a sink of type {pipeline.sink.type}, which publishes to no stream",
            "cli.no-stream",
            hint="name a pipeline file whose sink is of type jetstream, or the server and the"
            " stream by options; a sink of tables: `penstock verify FILE`",
        )
    return pipeline, server


def overrides(state: Path | None) -> dict[str, str]:
    """What `--state` replaces in the file."""
    return {"state": str(state)} if state else {}


def load_deployment(file: Path, state: Path | None) -> "Deployment":
    """The pipeline in FILE, or the processor where it has neither a sink nor Spark. `state`
    replaces the file's. Raises SettingsError."""
    from penstock.config import Pipeline, keys_of, load_file
    from penstock.processor.settings import ProcessorFile

    keys = keys_of(file)
    is_processor = "processor" in keys or ("backends" in keys and not keys & {"sink", "spark"})
    model: type[Deployment] = ProcessorFile if is_processor else Pipeline
    return load_file(file, model, overrides=overrides(state))


def print_json(found: Any) -> None:
    click.echo(json.dumps(found, indent=2))


def say(found: Any, text: str, *, as_json: bool) -> None:
    """Prints what was found or done: as JSON, or as a text for people."""
    if as_json:
        print_json(found)
    else:
        click.echo(text)


def print_list(
    rows: Sequence[Mapping[str, Any]],
    *,
    as_json: bool,
    none: str,
    head: Sequence[str],
    cells: Iterable[Sequence[str]],
) -> None:
    """Prints the rows as JSON, or their cells in columns; `none` where there is no row."""
    say(rows, columns(head, cells) if rows else none, as_json=as_json)


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

    def __init__(
        self, bind: str, port: int, *, path: str = "", token: str = "", is_tls: bool = False
    ) -> None:
        self._bind, self._port, self._path, self._token = bind, port, path, token
        self._connect = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection

    @classmethod
    def of(cls, ops: "Ops") -> "OpsClient":
        """With the token that reads and, where there is one, acts."""
        token = ops.token or ops.read_token
        return cls(ops.bind, ops.port, token="" if token is None else token.get_secret_value())

    def asked(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON it answers with; None where there is none. A `body` makes it a POST."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self._bind, self._bind)  # noqa: S104
        method, data = ("GET", None) if body is None else ("POST", json.dumps(body))
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        with closing(self._connect(host, self._port, timeout=_PATIENCE)) as connection:
            try:
                connection.request(method, self._path + path, data, headers)
                return json.loads(connection.getresponse().read(_LONGEST))
            except (OSError, http.client.HTTPException, ValueError):
                return None

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JSON object it answers with; empty where there is none."""
        found = self.asked(path, body)
        return found if isinstance(found, dict) else {}

    def answer(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The same; raises Unavailable where nothing answers."""
        if not (found := self.ask(path, body)):
            raise Unavailable(
                f"no ops server answers on {self._bind}:{self._port}",
                "cli.no-ops-server",
                hint="does the pipeline run here? give its file, or the URL of its ops server",
            )
        return found
