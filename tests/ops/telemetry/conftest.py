"""A process without OpenTelemetry's variables, and one that logs."""

import io
import logging
import os
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path

import pytest
import structlog

from penstock.ops.board import Board
from penstock.ops.logs import configure
from tests.servers.otlp import Collector


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Lines of a process that hides `hunter22`."""
    root, out = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers, root.level
    with redirect_stderr(out):
        configure("logfmt", secrets=["hunter22"])
    yield out
    structlog.reset_defaults()
    root.handlers = handlers
    root.setLevel(level)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """The one that the variables name."""
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        yield collector


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    with Board(tmp_path / "board") as board:
        yield board
