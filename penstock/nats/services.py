"""Services: programs that answer requests under a subject, and who asks them."""

from collections.abc import Callable

from penstock.model.errors import Unavailable
from penstock.nats.buckets import read_map
from penstock.nats.connection import Connection
from penstock.nats.protocol import Msg, hpub, status_of
from penstock.nats.subjects import covers

_DELIVERED = b"$JS.ACK."  # the reply subject of what a consumer of a stream delivers


def asked(
    connection: Connection, subject: str, payload: bytes, timeout: float | None = None
) -> Msg:
    """One request and its answer; raises Unavailable when nobody listens or answers in time,
    SettingsError when the account may not ask."""
    answer = connection.request(subject, payload, timeout)
    if _is_stored(answer.payload):  # by a stream that takes the subject, too
        answer = connection.another(answer, timeout)
    if status_of(answer.headers) == 503:
        raise Unavailable(f"no service answers requests on {subject}", "nats.no-answer")
    return answer


def _is_stored(payload: bytes) -> bool:
    """Whether it is the acknowledgement of a stream."""
    return payload.startswith(b"{") and read_map(payload).keys() >= {"stream", "seq"}


class Responder:
    """Takes the requests under a subject (may have wildcards), over a connection that it alone
    receives from, and over which `answer` may ask. That gives the payload; None: not for us. What
    is only published, without a reply subject, is a request, too, and gets no answer."""

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
            if covers(self._subject, message.subject.decode(errors="replace")):
                served += 1
                answer, reply = self._answer(message), message.reply
                if reply.startswith(_DELIVERED):
                    answer = b""  # which acknowledges it, whatever became of it
                if reply and answer is not None:
                    self._connection.send(hpub(reply, b"", b"NATS/1.0\r\n\r\n", answer))
        return served
