"""Services: programs that answer requests under a subject, and who asks them."""

from collections.abc import Callable

from penstock.model.errors import Unavailable
from penstock.nats.connection import Connection
from penstock.nats.protocol import Msg, hpub, status_of
from penstock.nats.subjects import covers


def asked(
    connection: Connection, subject: str, payload: bytes, timeout: float | None = None
) -> Msg:
    """One request and its answer; raises Unavailable when nobody listens or answers in time,
    SettingsError when the account may not ask."""
    answer = connection.request(subject, payload, timeout)
    if status_of(answer.headers) == 503:
        raise Unavailable(f"nobody answers requests on {subject}", "nats.no-answer")
    return answer


class Responder:
    """Answers the requests under a subject (may have wildcards), over a connection that it alone
    receives from, and over which `answer` may ask. That gives the payload; None: not for us."""

    def __init__(
        self, connection: Connection, subject: str, answer: Callable[[Msg], bytes | None]
    ) -> None:
        self._connection, self._subject, self._answer = connection, subject, answer

    def start(self) -> None:
        """Requests come here from now on. Raises Unavailable, SettingsError."""
        self._connection.subscribe(self._subject)

    def serve(self, timeout: float) -> int:
        """Answers what comes within so many seconds, and returns how many requests there were at
        once; 0 after the time has passed. Raises Unavailable, SettingsError."""
        served = 0
        for message in self._connection.receive(timeout):
            if message.reply and covers(self._subject, message.subject.decode(errors="replace")):
                served += 1
                if (answer := self._answer(message)) is not None:
                    self._connection.send(hpub(message.reply, b"", b"NATS/1.0\r\n\r\n", answer))
        return served
