"""`penstock process`: a processor for each backend, the ops server and the signals."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import structlog

from penstock.leases import open_store
from penstock.model.errors import Unavailable
from penstock.process.backoff import delays
from penstock.process.processes import StopRequest, ending_at_signals
from penstock.processor.observer import Observer
from penstock.processor.processor import Processor
from penstock.processor.reports import ProcessorReports
from penstock.processor.settings import ProcessorFile
from penstock.service.operations import Operations, open_board

REPORT = 1.0  # seconds between two reports

log = structlog.get_logger("penstock")


class ProcessorService:
    def __init__(self, file: ProcessorFile, observer: Callable[[], Observer]) -> None:
        self._file = file
        self._stop = StopRequest()
        self._signal = ""  # that asked for the stop
        fields = {name: getattr(file.processor, name) for name in type(file.processor).model_fields}
        letters = file.state / "dead-letters" if file.processor.exhausted == "dead-letter" else None
        self._processors = [
            Processor(
                backend.feed(),
                leases=open_store(file.positions),
                name=file.name,
                observer=observer,
                dead_letters=letters,
                **fields,
            )
            for backend in file.backends
        ]

    def stop(self) -> None:
        """Asks for a stop in order; from any thread or signal handler."""
        self._stop.set()

    def _stopping(self, signal: str) -> None:
        self._signal = signal
        self.stop()

    def run(self) -> int:
        """Blocks until stopped, then returns 0. Raises PenstockError for the operator to mend."""
        file = self._file
        with ExitStack() as stack:
            stack.enter_context(ending_at_signals(self._stopping))
            board = open_board(file, Path(file.state))  # posted to in this process alone
            reports = [
                stack.enter_context(ProcessorReports(each, board)) for each in self._processors
            ]
            ops = stack.enter_context(
                Operations(file, board, stop=self.stop, standby=lambda: _standby(reports))
            )
            pool = stack.enter_context(ThreadPoolExecutor(len(self._processors), "processor"))
            ops.listen()
            self._verify_name()
            running = [pool.submit(each.run) for each in self._processors]
            try:
                self._report(reports, running)
            finally:
                if self._signal:
                    log.info("stopping", signal=self._signal)
                for processor in self._processors:
                    processor.stop()
            for each in running:
                each.result()
        return 0

    def _verify_name(self) -> None:
        for wait in delays():
            try:
                self._file.verify_name()
            except Unavailable as error:
                log.warning("not available; trying again", error=str(error))
                if not self._stop.wait(wait):
                    continue
            return

    def _report(self, reports: list[ProcessorReports], running: list[Future[None]]) -> None:
        """Reports until a stop, or until a processor has ended: with an error."""
        while not any(each.done() for each in running):
            for report in reports:
                report.post()
            if self._stop.wait(REPORT):
                return


def _standby(reports: list[ProcessorReports]) -> str | None:
    reasons = [each.standby() for each in reports]
    return "; ".join(filter(None, reasons)) if all(reasons) else None
