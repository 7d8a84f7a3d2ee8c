"""`penstock process`: the Processor as a service."""

import logging
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from penstock.cli.options import file_argument, log_format, overrides, state_option
from penstock.config import load_file, secrets_of
from penstock.model.errors import SettingsError
from penstock.ops.logs import Format, configure
from penstock.processor.observer import Observer
from penstock.processor.settings import ProcessorFile
from penstock.service.processing import ProcessorService


@click.command("process")
@file_argument
@click.option(
    "--observer",
    required=True,
    metavar="MODULE:CLASS",
    help="A callable that makes an observer: package.module:Class. The command also searches the"
    " current folder.",
)
@log_format
@state_option
def command(*, file: Path, observer: str, log_format: Format | None, state: Path | None) -> None:
    """Call an observer with the changes of the feeds in FILE, together with other hosts.

    FILE is a pipeline file without `sink` and `spark`. At SIGINT, SIGTERM or POST /shutdown the
    command finishes the current batches, saves their places, and releases the leases.
    """
    found = load_file(file, ProcessorFile, overrides=overrides(state))
    configure(log_format, secrets=secrets_of(found))
    logging.getLogger("penstock").setLevel(logging.INFO)  # who has which partition
    raise SystemExit(ProcessorService(found, observer_of(observer)).run())


def observer_of(text: str) -> Callable[[], Observer]:
    """What `package.module:Class` names; raises SettingsError."""
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise SettingsError(f"{text!r} names no class", "cli", hint="write package.module:Class")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"--observer: there is no module {error.name!r}",
            "cli",
            hint="start penstock in its folder, or install its package",
        ) from error
    made = getattr(found, name, None)
    if not callable(made):
        raise SettingsError(f"--observer: {module} has no class {name!r}", "cli")
    return made  # type: ignore[no-any-return]
