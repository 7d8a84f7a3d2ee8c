"""OpenTelemetry: what a service knows of itself, sent where the standard `OTEL_*` variables say.

This module reads the variables alone. The SDK is imported in the service process, once one of them
names an endpoint; nothing else of penstock imports it.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import structlog
from prometheus_client import core

from penstock.ops.board import Board
from penstock.ops.logs import hide
from penstock.process.plugins import to_install

Signal = Literal["metrics", "logs", "traces"]
SIGNALS: tuple[Signal, ...] = ("metrics", "logs", "traces")

log = structlog.get_logger("penstock")


def wanted(environ: Mapping[str, str] = os.environ) -> frozenset[Signal]:
    """The signals that have an endpoint and are not turned off."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return frozenset()
    everywhere = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    return frozenset(
        each for each in SIGNALS
        if (environ.get(f"OTEL_EXPORTER_OTLP_{each.upper()}_ENDPOINT") or everywhere)
        and environ.get(f"OTEL_{each.upper()}_EXPORTER", "otlp").strip().lower() in ("otlp", "")
    )  # fmt: skip


def telemetry(
    board: Board, families: Callable[[], Iterable[core.Metric]], about: Mapping[str, str]
) -> AbstractContextManager[object]:
    """Sends within a `with`: the `families` of /metrics, the log, and the batches that the board
    hears of. `about`: attributes of the resource, which the variables go before."""
    if not (signals := wanted()):
        return nullcontext()
    if refused := _unknown_protocol(signals):
        log.warning("no telemetry is sent", error=refused, hint="use http/protobuf, on port 4318")
        return nullcontext()
    try:
        from penstock.ops.telemetry.exporting import Exporting
    except ImportError as error:
        hint = f"pip install '{to_install('otel')}', or unset OTEL_EXPORTER_OTLP_ENDPOINT"
        log.warning("no telemetry is sent", error=str(error), hint=hint)
        return nullcontext()
    # What authenticates at the collector is a secret.
    pairs = [value for name, value in os.environ.items() if name.endswith("_HEADERS")
             and name.startswith("OTEL_EXPORTER_OTLP_")]  # fmt: skip
    hide(each.partition("=")[2].strip() for pair in pairs for each in pair.split(","))
    try:
        return Exporting(signals, board, families, about)
    except (ValueError, OSError) as error:
        log.warning("no telemetry is sent", error=str(error), hint="correct the OTEL_* variables")
        return nullcontext()


def _unknown_protocol(signals: Iterable[Signal]) -> str:
    """Why it cannot be sent: the SDK would send HTTP to a port that speaks gRPC."""
    names = ["OTEL_EXPORTER_OTLP_PROTOCOL"]
    names += [f"OTEL_EXPORTER_OTLP_{each.upper()}_PROTOCOL" for each in signals]
    found = {name: os.environ.get(name, "") for name in names}
    wrong = [
        f"{name} is {each}" for name, each in found.items() if each and each != "http/protobuf"
    ]
    return ", ".join(wrong)
