"""The demo's consumer: reads the stream, keeps a copy of the tables, measures. Runs in a thread."""

import threading
import time
from collections import deque
from collections.abc import Mapping

from penstock.consumer.tail.message import Message
from penstock.consumer.tail.reader import TailReader
from penstock.demo.meter import Meter
from penstock.demo.replica import DemoReplica
from penstock.model.errors import Malformed, PenstockError, SettingsError, Unavailable


class Consumer:
    """Follows a stream from its beginning until stopped. `keys` are each table's key columns."""

    def __init__(self, url: str, stream: str, keys: Mapping[str, tuple[str, ...]]) -> None:
        self.replica = DemoReplica(keys)
        self.meter = Meter()
        self.latest: deque[Message] = deque(maxlen=12)
        self.error: PenstockError | None = None
        self.read_to = 0
        self._reader = TailReader(url, stream)
        self._stop = threading.Event()
        self._finish = threading.Event()
        self._thread = threading.Thread(target=self._run, name="consumer", daemon=True)

    def start(self) -> None:
        """Starts reading; the stream need not exist yet."""
        self._thread.start()

    def finish(self, timeout: float) -> bool:
        """Reads up to the stream's present end, and stops; False after `timeout`."""
        self._finish.set()
        self._thread.join(timeout)
        finished = not self._thread.is_alive()
        self.stop()
        return finished

    def stop(self) -> None:
        """Stops reading at once."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with self._reader:
            while not self._stop.is_set():
                finishing = self._finish.is_set()
                try:
                    if self._step() == 0 and finishing and self.read_to >= self._reader.end():
                        return
                except Malformed as error:
                    self.replica.impossible.append(str(error))
                except (SettingsError, Unavailable) as error:
                    # The stream may be made a moment later, and a server may be restarting.
                    self.error = error
                    self._stop.wait(0.2)

    def _step(self) -> int:
        messages = self._reader.fetch(timeout=0.2)
        now = time.monotonic()
        for message in messages:
            self.replica.apply(message)
            if message.committed_at is not None:
                latency = (message.stored_at - message.committed_at).total_seconds()
                self.meter.add(now, latency)
        self.latest.extend(messages)
        self.read_to = self._reader.sequence
        return len(messages)
