"""`penstock run`: the service."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from penstock.cli.options import file_argument, log_format, overrides, state_option
from penstock.microbatch.run_folder import run_folder
from penstock.model.errors import Unavailable
from penstock.model.finding import Finding
from penstock.spark.session.jvm import EarlyJvm
from penstock.spark.session.plan import guessed, plan_of

if TYPE_CHECKING:
    from penstock.config import Pipeline
    from penstock.ops.logs import Format
    from penstock.ops.metrics import Additions

# Set in the environment of a service that has started itself again.
_STARTED_AGAIN = "PENSTOCK_STARTED_AGAIN"
PAUSE = 1.0  # seconds between two such starts


@click.command("run")
@file_argument
@log_format
@click.option("--bridge-metrics", is_flag=True, help="Also serve the CDC bridge's bridge_* series.")
@state_option
def command(
    *, file: Path, log_format: "Format | None", bridge_metrics: bool, state: Path | None
) -> None:
    """Run the pipeline in FILE until SIGINT, SIGTERM or POST /shutdown.

    Reconnects without limit. Exits with 0 after a graceful stop: changes in flight are published,
    and positions are saved and acknowledged at the source.
    """

    def load() -> "Pipeline":
        from penstock.config import load_pipeline

        return load_pipeline(file, overrides=overrides(state))

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        text = ""  # `load` says what is wrong
    serve(load, log_format=log_format, bridge="series" if bridge_metrics else "", text=text)


def serve(
    load: "Callable[[], Pipeline]",
    *,
    log_format: "Format | None",
    bridge: Literal["", "series", "all"],
    text: str = "",
) -> None:
    """Sets up logs, runs the service, exits with its code; begins anew when the JVM dies.
    `bridge`: which of the CDC bridge's additions are served. `text`: of the file that `load` reads,
    if it reads one."""
    with run_folder() as run, EarlyJvm() as early:
        # The JVM boots while the file is read, which takes many imports, and while the service is
        # imported.
        if (plan := guessed(text, run)) is not None:
            early.guess(plan)
        pipeline = load()
        started = early.start(plan_of(pipeline, run))
        import structlog

        from penstock.config import secrets_of
        from penstock.ops.logs import configure

        configure(log_format, secrets=secrets_of(pipeline))
        from penstock.service.service import Service
        from penstock.spark.queries.supervised import EngineLost

        more = _additions(bridge) if bridge else None
        service = Service(pipeline, run, started=started, findings=_findings, more=more)
        try:
            raise SystemExit(service.run())
        except Unavailable as error:
            # What never started is the operator's to mend; what ran waits for a cluster to come
            # back.
            waits = _STARTED_AGAIN in os.environ and not service.is_stopping
            if not (waits or isinstance(error, EngineLost)):
                raise
            structlog.get_logger("penstock").error("starting again", error=str(error))
            time.sleep(PAUSE if _STARTED_AGAIN in os.environ else 0.0)
    os.environ[_STARTED_AGAIN] = "1"
    # py4j holds state of the dead JVM all over this process: a new image is a clean start.
    os.execv(sys.executable, [sys.executable, "-m", "penstock", *sys.argv[1:]])  # noqa: S606


# Imported when they are wanted, which most runs do not.
def _additions(bridge: Literal["series", "all"]) -> "Additions":
    from penstock.cli.bridge_series import BRIDGE, SERIES

    return SERIES if bridge == "series" else BRIDGE


def _findings(pipeline: "Pipeline") -> Iterator[Finding]:
    from penstock.cli.check import findings

    return findings(pipeline)
