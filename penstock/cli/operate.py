"""`penstock pause`, `resume`, `retry`, `shutdown`: what operators do to a pipeline that runs."""

from pathlib import Path
from typing import Any

import click

from penstock.cli.options import (
    OpsClient,
    file_argument,
    json_option,
    overrides,
    say,
    state_option,
)
from penstock.config import Pipeline, load_pipeline
from penstock.model.errors import Rejected, SettingsError
from penstock.service.actions import Operated, PauseAction, ResumeAction, read_action

_backend = click.argument("backend", required=False)


@click.command("pause")
@file_argument
@_backend
@click.option(
    "--for", "seconds", metavar="TIME", help="How long, such as 30m; default: until `resume`."
)
@json_option()
@state_option
def pause(
    *, file: Path, backend: str | None, seconds: str | None, as_json: bool, state: Path | None
) -> None:
    """Pause BACKEND of the pipeline in FILE, or all backends: they take no more changes.

    Changes in flight are stored and acknowledged, and connections stay open. A pause outlasts a
    restart, and holds for other instances. It ends by itself before the source drops unread
    changes.
    """
    given = {"backend": backend, **({"for": seconds} if seconds else {})}
    _print(read_action(PauseAction.title(), given).run(_reachable(file, state)), as_json=as_json)


@click.command("resume")
@file_argument
@_backend
@json_option()
@state_option
def resume(*, file: Path, backend: str | None, as_json: bool, state: Path | None) -> None:
    """End the pause of BACKEND of the pipeline in FILE, or of all backends."""
    on, action = _reachable(file, state), ResumeAction(backend=backend)
    if why := action.refusal(on):
        raise SettingsError(why, "cli")
    _print(action.run(on), as_json=as_json)


@click.command("retry")
@file_argument
@_backend
@json_option()
def retry(*, file: Path, backend: str | None, as_json: bool) -> None:
    """Make BACKEND of the pipeline in FILE, or all backends, begin anew now.

    penstock also retries a backend that stands still by itself, now and then. The command asks the
    ops server on this machine, and needs `ops.token`.
    """
    _asked(load_pipeline(file), "retry", {"backend": backend}, as_json=as_json)


@click.command("shutdown")
@file_argument
@json_option()
def shutdown(*, file: Path, as_json: bool) -> None:
    """Stop the pipeline in FILE that runs on this machine, in order.

    The command asks the pipeline's ops server, and needs `ops.token`.
    """
    _asked(load_pipeline(file), "shutdown", {}, as_json=as_json)


def _reachable(file: Path, state: Path | None) -> Operated:
    return Operated.by_command(load_pipeline(file, overrides=overrides(state)))


def _print(done: Any, *, as_json: bool) -> None:
    lines = (f"{what}: {', '.join(names)}" for what, names in done.items())
    say(done, "\n".join(lines), as_json=as_json)


def _asked(pipeline: Pipeline, action: str, arguments: Any, *, as_json: bool) -> None:
    if pipeline.ops.token is None:
        raise SettingsError(
            f"{action} needs ops.token",
            "cli",
            hint="set it in the file, and start the pipeline again",
        )
    if "error" in (found := OpsClient.of(pipeline.ops).answer(f"/actions/{action}", arguments)):
        raise Rejected(str(found["error"]), "cli", hint=str(found.get("info", "")))
    say(found, f"{action} has begun", as_json=as_json)
