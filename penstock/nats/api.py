"""JetStream's own API: JSON questions over a connection, answers as plain values."""

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import orjson

from penstock.model.errors import Malformed, PenstockError, Rejected, SettingsError, Unavailable
from penstock.nats.connection import Connection
from penstock.nats.protocol import Msg, headers_of, status_of
from penstock.nats.subjects import overlaps

T = TypeVar("T")

# The error codes of a message whose expected sequence was not the last.
WRONG_SEQUENCE = frozenset({10071, 10164})
# No peers for a stream's copies; why of those that there are, where that passes.
_NO_PEERS = 10005
_OF_PEERS = ("offline", "insufficient storage")
_NOT_FOUND = {10059, 10037, 10043}
_WILD = {"*": "*", ">": ">"}
# err_code -> (what to raise, remedy). Codes: errors.json of nats-server.
_SHOWN = 20  # names in a hint

_ERRORS: Mapping[int, tuple[type[PenstockError], str]] = {
    10039: (SettingsError, "enable JetStream for the account"),
    10076: (SettingsError, "start nats-server with JetStream enabled (-js, or jetstream {})"),
    10054: (Rejected, "raise the stream's max_msg_size, or drop the large column"),
    10052: (SettingsError, "correct what the message names"),
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
    10169: (SettingsError, "the stream counts (allow_msg_counter): use another one"),
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
        time = str(message.get("time", ""))
        return cls(message["seq"], message["subject"], headers, payload, time)

    @classmethod
    def direct(cls, message: Msg) -> "Stored":
        """From an answer to DIRECT.GET."""
        headers = headers_of(message.headers)
        sequence, time = int(headers["Nats-Sequence"]), headers.get("Nats-Time-Stamp", "")
        return cls(sequence, headers["Nats-Subject"], headers, message.payload, time)


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
    if error.code == _NO_PEERS and any(each in error.text for each in _OF_PEERS):
        kind = Unavailable
    return kind(f"{what}: JetStream says {error}", "nats", hint=hint)


class JetStream:
    """The few questions a sink asks. Raises Unavailable, SettingsError or Rejected."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._may_ask_directly = True

    def account(self) -> Mapping[str, Any]:
        return self._call("INFO", {})

    def stream(self, name: str, asked: Mapping[str, Any] | None = None) -> Mapping[str, Any] | None:
        """STREAM.INFO, or None."""
        return self._maybe(f"STREAM.INFO.{name}", asked)

    def create(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """STREAM.CREATE; the same configuration again is no error."""
        return self._call(f"STREAM.CREATE.{config['name']}", config)

    def update(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._call(f"STREAM.UPDATE.{config['name']}", config)

    def purge(self, stream: str, subject: str) -> None:
        """Deletes all messages under `subject` (may have wildcards); none is no error."""
        self._maybe(f"STREAM.PURGE.{stream}", {"filter": subject})

    def delete(self, stream: str) -> None:
        """Deletes the stream, if it is there."""
        self._maybe(f"STREAM.DELETE.{stream}")

    def names(self, subject: str) -> list[str]:
        """Streams that have subjects in common with `subject`."""
        found = list[str]()
        while True:  # a page has 1024
            answer = self._call("STREAM.NAMES", {"subject": subject, "offset": len(found)})
            page = answer.get("streams") or ()
            found += page
            if not page or len(found) >= answer.get("total", 0):
                return found

    def those_there(self) -> str:
        """The names of all streams, as the begin of a hint; "" where the account may not know."""
        with suppress(PenstockError):
            names = [name for name in self.names(">") if not name.startswith(("KV_", "OBJ_"))]
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            return f"there are: {', '.join(sorted(names)[:_SHOWN])}{more}. " if names else ""
        return ""

    def last(self, stream: str, subject: str) -> Stored | None:
        """The last message stored under `subject` (may have wildcards), as its leader has it."""
        return self._get(stream, {"last_by_subj": subject})

    def last_of_each(
        self, stream: str, subjects: Sequence[str], *, direct: bool
    ) -> list[Stored | None]:
        """The last message stored under each of the subjects (may have wildcards): by a request for
        each, sent together; with `direct`, which needs `allow_direct` and a server of 2.11 or
        later, by a few. Any copy of a stream answers these, even a late one: for streams with
        one."""
        found: list[Stored | None] = []
        size = len(subjects) if direct and self._may_ask_directly else 0
        while size and len(found) < len(subjects):
            chosen = subjects[len(found) : len(found) + size]
            lasts = self._direct_lasts(stream, chosen)
            if lasts is None:
                size = size // 2 if self._may_ask_directly else 0
            else:
                found += lasts
        left = subjects[len(found) :]
        return found + self._gets(stream, [{"last_by_subj": one} for one in left])

    def _gets(self, stream: str, which: Iterable[Mapping[str, Any]]) -> list[Stored | None]:
        verb = f"STREAM.MSG.GET.{stream}"
        asked = [(f"{self._connection.api}.{verb}", orjson.dumps(one), b"") for one in which]
        answers = self._connection.requests(asked)
        found = (self._maybe(verb, answer=answer) for answer in answers)
        return [None if one is None else Stored.of(one["message"]) for one in found]

    def _direct_lasts(self, stream: str, subjects: Sequence[str]) -> list[Stored | None] | None:
        """By one request or, where messages are large, a few; None when they can't be had so: the
        stream does not allow it, or there are too many."""
        messages: list[Stored] = []
        asked: dict[str, Any] = {"multi_last": subjects}
        while True:
            try:
                answers = self._connection.request_many(
                    f"{self._connection.api}.DIRECT.GET.{stream}", orjson.dumps(asked)
                )
            except SettingsError:  # the account may not ask so
                self._may_ask_directly = False
                return None
            status = status_of(answers[-1].headers)
            if status not in (204, 404):
                return None
            messages += map(Stored.direct, answers[:-1])
            end = headers_of(answers[-1].headers)
            if status == 404 or end.get("Nats-Num-Pending", "0") == "0":
                break
            asked |= {"up_to_seq": int(end["Nats-UpTo-Sequence"]), "seq": messages[-1].sequence + 1}
        return _last_of_each(messages, subjects)

    def next(self, stream: str, subject: str, sequence: int) -> Stored | None:
        """The first message under `subject` (may have wildcards) from `sequence` on."""
        return self._get(stream, {"seq": sequence, "next_by_subj": subject})

    def each(self, stream: str, subject: str, *, after: int = 0) -> Iterator[Stored]:
        """The messages under `subject` after sequence `after`, by a question for each: consumers
        would need another permission."""
        while found := self.next(stream, subject, after + 1):
            after = found.sequence
            yield found

    def message(self, stream: str, sequence: int) -> Stored | None:
        return self._get(stream, {"seq": sequence})

    def messages(self, stream: str, sequences: Iterable[int]) -> list[Stored]:
        asked = [{"seq": each} for each in sequences]
        return [each for each in self._gets(stream, asked) if each is not None]

    def consumer(self, stream: str, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Makes a consumer that is not durable (`name`, `num_pending`); None: no such stream."""
        asked = {"stream_name": stream, "config": config}
        return self._maybe(f"CONSUMER.CREATE.{stream}", asked)

    def remove(self, stream: str, sequence: int) -> None:
        """Deletes a message; one that is gone is no error."""
        self._maybe(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})

    def publish(self, subject: str, headers: bytes, payload: bytes) -> Mapping[str, Any]:
        """Stores one message and returns its acknowledgement (`seq`, `duplicate`). `headers` are
        whole. Raises ApiError when the stream refuses it."""
        answer = self._connection.request(subject, payload, headers=headers)
        if status_of(answer.headers) == 503:
            raise Unavailable(f"no stream takes {subject} now", "nats")
        document: Mapping[str, Any] = orjson.loads(answer.payload)
        if failure := document.get("error"):
            raise ApiError.of(failure)
        return document

    def _get(self, stream: str, which: Mapping[str, Any]) -> Stored | None:
        answer = self._maybe(f"STREAM.MSG.GET.{stream}", which)
        return None if answer is None else Stored.of(answer["message"])

    def _maybe(
        self, verb: str, body: Mapping[str, Any] | None = None, *, answer: Msg | None = None
    ) -> Mapping[str, Any] | None:
        try:
            return self._ask(verb, body or {}) if answer is None else self._read(verb, answer)
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
        subject = f"{self._connection.api}.{verb}"
        answer = self._connection.request(subject, orjson.dumps(body) if body else b"")
        return self._read(verb, answer)

    def _read(self, verb: str, answer: Msg) -> Mapping[str, Any]:
        if status_of(answer.headers) == 503:
            self._refuse_silence()
        try:
            document: Mapping[str, Any] = orjson.loads(answer.payload)
        except orjson.JSONDecodeError as error:
            raise Malformed(f"the answer to {verb} is not JSON", "nats") from error
        if failure := document.get("error"):
            raise ApiError.of(failure)
        return document

    def _refuse_silence(self) -> NoReturn:
        address, info = self._connection.address, self._connection.info
        if self._connection.is_elsewhere:
            raise Unavailable(
                f"no JetStream answers {address} on {self._connection.api}",
                "nats.jetstream-silent",
                hint="is the leaf node connected, does the account import it, and is `domain` or"
                " `api_prefix` right?",
            )
        if info.get("jetstream") or info.get("cluster"):
            raise Unavailable(
                f"JetStream of {address} does not answer now", "nats.jetstream-silent"
            )
        raise SettingsError(
            f"{address} has no JetStream",
            "nats.no-jetstream",
            hint="start nats-server with JetStream enabled (-js, or jetstream {})",
        )


def _last_of_each(messages: Sequence[Stored], subjects: Sequence[str]) -> list[Stored | None]:
    """The last of the messages under each of the subjects, which do not overlap."""
    found: dict[str, Stored] = {}
    wanted = set(subjects)
    # Subjects of one form have wildcards in the same tokens: a look-up for each form finds the one.
    forms = {tuple(_WILD.get(token, "") for token in one.split(".")) for one in subjects}
    for message in messages:
        for form in forms:
            subject = _in_form(message.subject, form)
            known = found.get(subject)
            if subject in wanted and (known is None or known.sequence < message.sequence):
                found[subject] = message
    return [found.get(subject) for subject in subjects]


def _in_form(subject: str, form: Sequence[str]) -> str:
    """The pattern of this form that the subject matches; empty if it matches none."""
    tokens = subject.split(".")
    if form[-1] == ">" and len(tokens) >= len(form):
        tokens = tokens[: len(form)]
    if len(tokens) != len(form):
        return ""
    return ".".join(wild or token for wild, token in zip(form, tokens, strict=True))


def unfit(name: str, config: Mapping[str, Any], wildcard: str) -> Iterator[tuple[str, str]]:
    """What keeps a stream from storing what we publish under `wildcard`: (problem, remedy)."""
    if config.get("sealed"):
        yield "is sealed", "use another stream"
    if config.get("mirror"):
        yield "is a mirror, which takes no messages", "publish to the stream it mirrors"
    if config.get("no_ack"):
        yield "acknowledges nothing (no_ack)", f"nats stream edit {name} --ack"
    if config.get("allow_msg_counter"):
        yield "counts (allow_msg_counter), and takes nothing but increments", "use another stream"
    moved = config.get("subject_transform") or {}
    if moved.get("dest") and overlaps(moved.get("src") or ">", wildcard):
        yield (
            f"stores what we publish as {moved['dest']} (subject_transform), where it is not found",
            f"take it out (nats stream edit {name} --interactive): a stream with this one as its "
            "source can transform",
        )


def swapped(attempt: Callable[[], T], what: str, *, attempts: int = 10) -> T:
    """Compare and swap: what `attempt` returns, which reads the last message of a subject and
    stores one that expects it to be the last. It runs again when another writer was faster. Raises
    Unavailable when others were faster each time, and what else `attempt` raises."""
    for _ in range(attempts):
        try:
            return attempt()
        except ApiError as error:
            if error.code not in WRONG_SEQUENCE:
                raise error_of(error, what) from None
    raise Unavailable(f"{what} was changed by others in each of {attempts} attempts", "nats")
