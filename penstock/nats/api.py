"""JetStream's own API: JSON questions over a connection, answers as plain values."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from penstock.errors import Malformed, PenstockError, Rejected, SettingsError, Unavailable
from penstock.nats.connection import Connection
from penstock.nats.protocol import headers_of, status_of

__all__ = ["ApiError", "JetStream", "Stored", "error_of"]

_NOT_FOUND = {10059, 10037, 10043}
# err_code -> (what to raise, remedy). Codes: errors.json of nats-server.
_ERRORS: Mapping[int, tuple[type[PenstockError], str]] = {
    10039: (SettingsError, "enable JetStream for the account"),
    10076: (SettingsError, "start nats-server with JetStream enabled (-js, or jetstream {})"),
    10054: (Rejected, "raise the stream's max_msg_size, or drop the large column"),
    10058: (SettingsError, "a stream of that name exists with another configuration"),
    10065: (SettingsError, "another stream takes these subjects: change the sink's subject"),
    10074: (SettingsError, "replicas need a cluster of at least as many servers"),
    10005: (SettingsError, "the cluster has too few servers for that many replicas"),
    # Full, of one kind or another: it is waited for, the source keeps its log meanwhile.
    10077: (Unavailable, "the stream is full: raise its max_bytes or max_msgs, or purge it"),
    10002: (Unavailable, "the account is full: raise its storage limit, or purge streams"),
    10023: (Unavailable, "the server is full: raise its max_file, or purge streams"),
    10174: (SettingsError, "nats stream edit STREAM --allow-batch, or delivery: deduplicated"),
    10109: (SettingsError, "the stream is sealed: use another one"),
}


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as the stream has it."""

    sequence: int
    subject: str
    headers: Mapping[str, str]
    payload: bytes = b""
    time: str = ""  # when it was stored, RFC 3339 in UTC

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> "Stored":
        """From the `message` of an answer to STREAM.MSG.GET."""
        headers = headers_of(base64.b64decode(message.get("hdrs") or ""))
        payload = base64.b64decode(message.get("data") or "")
        return cls(
            message["seq"], message["subject"], headers, payload, str(message.get("time", ""))
        )


class ApiError(Exception):
    """What JetStream answered instead of doing it; `code` is its err_code."""

    def __init__(self, code: int, status: int, text: str) -> None:
        super().__init__(f"{text} [{code}]")
        self.code, self.status, self.text = code, status, text

    @classmethod
    def of(cls, failure: Mapping[str, Any]) -> "ApiError":
        """From the `error` of an answer."""
        return cls(
            failure.get("err_code", 0), failure.get("code", 0), failure.get("description", "")
        )


def error_of(error: ApiError, what: str) -> PenstockError:
    """The retry decision: what is not known to need an operator is tried again."""
    kind, hint = _ERRORS.get(error.code, (Unavailable, ""))
    if error.code not in _ERRORS and error.status == 400:
        kind = SettingsError
    return kind(f"{what}: JetStream says {error}", hint=hint)


class JetStream:
    """The few questions a sink asks. Raises Unavailable, SettingsError or Rejected."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def account(self) -> Mapping[str, Any]:
        """Limits and use of the account."""
        return self._call("INFO", {})

    def stream(self, name: str) -> Mapping[str, Any] | None:
        """STREAM.INFO, or None."""
        return self._maybe(f"STREAM.INFO.{name}", {})

    def create(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """STREAM.CREATE; the same configuration again is no error."""
        return self._call(f"STREAM.CREATE.{config['name']}", config)

    def update(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """STREAM.UPDATE."""
        return self._call(f"STREAM.UPDATE.{config['name']}", config)

    def names(self, subject: str) -> list[str]:
        """Streams that have subjects in common with `subject`."""
        return list(self._call("STREAM.NAMES", {"subject": subject}).get("streams") or ())

    def last(self, stream: str, subject: str) -> Stored | None:
        """The last message stored under `subject` (may have wildcards), as its leader has it."""
        return self._get(stream, {"last_by_subj": subject})

    def next(self, stream: str, subject: str, sequence: int) -> Stored | None:
        """The first message under `subject` (may have wildcards) from `sequence` on."""
        return self._get(stream, {"seq": sequence, "next_by_subj": subject})

    def message(self, stream: str, sequence: int) -> Stored | None:
        """The message with this sequence."""
        return self._get(stream, {"seq": sequence})

    def remove(self, stream: str, sequence: int) -> None:
        """Deletes a message; one that is gone is no error."""
        self._maybe(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})

    def publish(self, subject: str, headers: bytes, payload: bytes) -> Mapping[str, Any]:
        """Stores one message and returns its acknowledgement (`seq`, `duplicate`). `headers` are
        whole. Raises ApiError when the stream refuses it."""
        answer = self._connection.request(subject, payload, headers=headers)
        if status_of(answer.headers) == 503:
            raise Unavailable(f"no stream takes {subject} now")
        document: Mapping[str, Any] = orjson.loads(answer.payload)
        if failure := document.get("error"):
            raise ApiError.of(failure)
        return document

    def _get(self, stream: str, which: Mapping[str, Any]) -> Stored | None:
        answer = self._maybe(f"STREAM.MSG.GET.{stream}", which)
        return None if answer is None else Stored.of(answer["message"])

    def _maybe(self, verb: str, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
        try:
            return self._ask(verb, body)
        except ApiError as error:
            if error.code in _NOT_FOUND:
                return None
            raise error_of(error, verb) from None

    def _call(self, verb: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return self._ask(verb, body)
        except ApiError as error:
            raise error_of(error, verb) from None

    def _ask(self, verb: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = self._connection.request(f"$JS.API.{verb}", orjson.dumps(body) if body else b"")
        if status_of(answer.headers) == 503:
            raise self._nobody()
        try:
            document: Mapping[str, Any] = orjson.loads(answer.payload)
        except orjson.JSONDecodeError as error:
            raise Malformed(f"the answer to {verb} is not JSON") from error
        if failure := document.get("error"):
            raise ApiError.of(failure)
        return document

    def _nobody(self) -> PenstockError:
        address = self._connection.address
        if self._connection.info.get("jetstream") or self._connection.info.get("cluster"):
            return Unavailable(f"JetStream of {address} does not answer now")
        return SettingsError(
            f"{address} has no JetStream",
            hint="start nats-server with JetStream enabled (-js, or jetstream {})",
        )
