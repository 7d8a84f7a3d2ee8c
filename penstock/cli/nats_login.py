"""How a command without a pipeline file logs in to NATS: by options, or the environment."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from penstock.nats.settings import NatsSettings

# Setting -> the variable, as the tools of NATS call it, and what the file has.
_FILES = {
    "credentials": ("NATS_CREDS", "File with a JWT and its seed (.creds)."),
    "nkey": ("NATS_NKEY", "File with the seed of an nkey."),
    "tls_ca": ("NATS_CA", "PEM file of the authorities; default: the system's."),
    "tls_cert": ("NATS_CERT", "PEM file of the client's certificate."),
    "tls_key": ("NATS_KEY", "PEM file of the certificate's key."),
}


def nats_login(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options; the command takes them as `**login`."""
    kind = click.Path(exists=True, dir_okay=False)
    for name, (variable, text) in reversed(_FILES.items()):
        option = click.option(f"--{name.replace('_', '-')}", envvar=variable, type=kind, help=text)
        command = option(command)
    return command


def settings_of(url: str, login: Mapping[str, str | None]) -> NatsSettings:
    """What the options say."""
    seed = {"nkey": Path(login["nkey"]).read_text().strip()} if login["nkey"] else {}
    return NatsSettings.model_validate({"url": url, **login, **seed})
