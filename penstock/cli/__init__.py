"""The command line: one group, one module per command, loaded when it is called.

So `penstock tail` does not import Spark, and a command whose extra is not installed says which
one to install while the others work.
"""

from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import distribution
from typing import Any, NoReturn

import click

from penstock.model.errors import PenstockError, SettingsError
from penstock.model.version import DOCS
from penstock.process.plugins import installed_by

# name -> what `penstock --help` says. Its module has the same name.
_COMMANDS = {
    "run": "Run a pipeline until it is stopped.",
    "process": "Call an observer with the changes of a feed, on several hosts.",
    "init": "Print a pipeline file to begin with.",
    "check": "Report what would keep a pipeline from running.",
    "preview": "Show rows before and after transform, filter and set.",
    "tail": "Print the changes of a stream as they arrive.",
    "bridge": "Publish one slot to one stream, configured by flags.",
    "snapshot": "Take snapshots of tables.",
    "map": "Show and fill the map of a sink of tables.",
    "reload": "Load a table of a sink of tables anew.",
    "mirror": "Keep copies of tables in SQLite or PostgreSQL.",
    "positions": "Show and change the saved positions of a pipeline.",
    "gaps": "Show lost changes, and mark them as mended.",
    "compare": "Compare a stream with a table or collection.",
    "verify": "Compare tables at a destination with their sources.",
    "dead-letters": "Show and replay changes that could not be published.",
    "tables": "Show tables, and resume suspended ones.",
    "status": "Show the status of a running pipeline.",
    "top": "Watch a running pipeline in a terminal.",
    "pause": "Pause a pipeline: it takes no more changes.",
    "resume": "End a pause.",
    "retry": "Make backends that stand still begin anew now.",
    "shutdown": "Stop a pipeline that runs on this machine.",
    "dictionaries": "Train and show dictionaries that compress single changes.",
    "explain": "Explain the code of an error, and the remedy.",
    "prove": "Run penstock's tests on a service of your own.",
    "demo": "Run a whole pipeline on embedded servers, with a verdict.",
}
# Those that share a module, and are called in it as they are here.
_SHARED = {
    "reload": "tables", "status": "status", "top": "status",
    "pause": "operate", "resume": "operate", "retry": "operate", "shutdown": "operate",
}  # fmt: skip

_GONE = SettingsError(
    "`penstock class-archive` is no more",
    "cli.command-gone",
    hint="a pipeline makes the archive when it idles; spark.class_archive says where",
)


class _Commands(click.Group):
    """Finds commands by name without importing the others, and prints errors as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "class-archive":
            _fail(_GONE)
        if cmd_name not in _COMMANDS:
            return None
        module = _SHARED.get(cmd_name, cmd_name.replace("-", "_"))
        try:
            found = import_module(f"penstock.cli.{module}")
        except ModuleNotFoundError as error:
            _fail(_missing(cmd_name, error))
        command: click.Command = getattr(found, cmd_name if cmd_name in _SHARED else "command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = get_close_matches(args[0], _COMMANDS, n=1)
        if near and args[0] not in (*_COMMANDS, "class-archive"):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*_COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PenstockError as error:
            _fail(error)
        except ModuleNotFoundError as error:
            if installed_by(error.name or "", distribution("penstock-cdc")) is None:
                raise
            _fail(_missing(ctx.invoked_subcommand or "penstock", error))


def _missing(command: str, error: ModuleNotFoundError) -> SettingsError:
    module = error.name or "?"
    wanted = installed_by(module, distribution("penstock-cdc"))
    hint = f"pip install '{wanted}'" if wanted else "pip install --force-reinstall penstock-cdc"
    return SettingsError(
        f"`penstock {command}` needs the module {module!r}, which is not installed",
        "cli.module-missing",
        hint=hint,
    )


def _fail(error: PenstockError) -> NoReturn:
    """Prints what happened, the remedy and where it is explained; exits."""
    click.secho("error: ", nl=False, bold=True, fg="red", err=True)
    click.echo(error.message, err=True)
    if error.hint:
        click.echo(f"hint:  {error.hint}", err=True)
    page = f"{DOCS}/reference/errors/#{error.code.replace('.', '')}"
    click.echo(f"see:   penstock explain {error.code}, or {page}", err=True)
    raise SystemExit(2 if isinstance(error, SettingsError) else 1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="penstock-cdc", prog_name="penstock")
def main() -> None:
    """Change data capture for Apache Spark: every change, in order, once.

    \b
    A first look, on embedded servers:    penstock demo
    A pipeline of your own:               penstock init postgres --to pipeline.yaml
                                          penstock check pipeline.yaml
                                          penstock preview pipeline.yaml
                                          penstock run pipeline.yaml
    What it publishes:                    penstock tail pipeline.yaml

    Exit codes: 0 done, 1 failed (trying again may help), 2 something must be changed first.
    """
