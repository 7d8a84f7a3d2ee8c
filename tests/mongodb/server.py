"""A mongod, or a mongos, that follows a script: OP_MSG as PyMongo speaks it, with what no embedded
stand-in can be made to do.

    history = History()
    with ScriptedMongod(history) as server:
        history.insert(1)
        server.fail("getMore", 77777, times=10)
        server.scan = 3.0                     # the next scans take so many seconds
        server.committed = history.oldest     # just elected: the majority's snapshot is older
        server.commands                       # what was asked, in order
"""

import itertools
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Self

import bson
from bson.int64 import Int64

from tests.mongodb.cursors import ChangeStreamCursor, Refused
from tests.mongodb.history import History, inserted, time_of, timestamp

_HEADER = struct.Struct("<iiii")
_REPLY, _QUERY, _MESSAGE = 1, 2004, 2013
_MORE_TO_COME = 2
_Document = dict[str, Any]


@dataclass
class _Failure:
    """What the next `times` commands of this name are answered."""

    command: str
    error: Refused
    times: int


class ScriptedMongod:
    """Serves on a free port of loopback from `__enter__` to `__exit__`. Members of one set share a
    history; `others` are the other members that its `hello` names."""

    def __init__(
        self, history: History, kind: Literal["primary", "secondary", "mongos"] = "primary"
    ) -> None:
        self.history, self.kind = history, kind
        self.others: list[ScriptedMongod] = []
        self.port = 0  # the same one when it is entered again
        self.scan = 0.0
        """Seconds that a scan of entries takes."""
        self.applied: int | None = None
        """The newest time that this member has applied; None: all."""
        self.committed: int | None = None
        """The time of its majority snapshot, which is the `operationTime` of majority reads:
        `computeOperationTime` in src/mongo/db/service_entry_point_shard_role.cpp."""
        self.cluster_time: int | None = None
        """The newest time that it has heard of; None: the history's."""
        self.denied: set[str] = set()
        """Namespaces whose reading is refused."""
        self.late = 0
        """How many replies of each cursor come before a shard's first answer (a mongos): empty
        after maxTimeMS, with the token that the aggregate had. `awaitNextWithTimeout` in
        src/mongo/s/query/exec/blocking_results_merger.cpp; the token is the lowest of all shards',
        `AsyncResultsMerger::getHighWaterMark`."""
        self.split_over = 16 * 2**20
        self.version = (8, 0, 4)
        self.password = ""
        """Of a login with PLAIN, which is LDAP's. Commands do not ask whether there was one."""
        self.documents: dict[str, list[_Document]] = {}
        """Namespace -> what `find` returns."""
        self.kinds: dict[str, str] = {}
        """Collections that `listCollections` shows as of this type."""
        self.commands: list[tuple[str, _Document]] = []
        self.answers = threading.Event()
        """Cleared: the server hangs, its monitor's connections too."""
        self.answers.set()
        self._failures: list[_Failure] = []
        self._cursors: dict[int, ChangeStreamCursor] = {}
        self._numbers = itertools.count(1000)
        self._stopping = threading.Event()

    # The script.

    def fail(self, command: str, code: int, message: str = "scripted", *, times: int = 1) -> None:
        """The next `times` of these commands fail."""
        self._failures.append(_Failure(command, Refused(code, message), times))

    def asked(self, command: str) -> list[_Document]:
        """The commands of this name so far."""
        return [document for name, document in list(self.commands) if name == command]

    @property
    def cursors(self) -> int:
        """How many are open."""
        return len(self._cursors)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Of all members; of a mongos alone."""
        hosts = ",".join(each.address for each in (self, *self.others))
        return f"mongodb://{hosts}/" + (
            "" if self.kind == "mongos" else f"?replicaSet={self.history.name}"
        )

    def __enter__(self) -> Self:
        server = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                server._sockets.add(self.request)
                with suppress(OSError, EOFError):
                    server._serve(self.request)
                server._sockets.discard(self.request)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """A client that goes is no error."""

        self._sockets: set[socket.socket] = set()
        self._stopping.clear()
        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    # The protocol.

    def _serve(self, connection: socket.socket) -> None:
        while not self._stopping.is_set():
            size, request, _, code = _HEADER.unpack(_read(connection, 16))
            body = _read(connection, size - 16)
            command, silent = _command_of(code, body)
            reply = bson.encode(self._answer(command))
            self.answers.wait()
            if silent:
                continue
            if code == _QUERY:
                payload = struct.pack("<iqii", 8, 0, 0, 1) + reply
            else:
                payload = struct.pack("<iB", 0, 0) + reply
            kind = _REPLY if code == _QUERY else _MESSAGE
            connection.sendall(_HEADER.pack(16 + len(payload), 0, request, kind) + payload)

    def _answer(self, command: _Document) -> _Document:
        name = next(iter(command))
        if name.lower() not in ("hello", "ismaster"):
            self.commands.append((name, command))
        try:
            for each in self._failures:
                if each.command == name and each.times:
                    each.times -= 1
                    raise each.error
            answer = self._carry_out(name, command)
        except Refused as error:
            answer = {"ok": 0.0, "code": error.code, "errmsg": error.message}
        return {**answer, **self._times()}

    def _times(self) -> _Document:
        committed = self._readable() if self.committed is None else self.committed
        newest = self.history.newest if self.cluster_time is None else self.cluster_time
        return {
            "operationTime": timestamp(committed),
            "$clusterTime": {
                "clusterTime": timestamp(newest),
                "signature": {"hash": b"\0" * 20, "keyId": Int64(0)},
            },
        }

    def _readable(self) -> int:
        return self.history.newest if self.applied is None else self.applied

    # Commands.

    def _carry_out(self, name: str, command: _Document) -> _Document:
        handlers: Mapping[str, Callable[[_Document], _Document]] = {
            "hello": self._hello,
            "isMaster": self._hello,
            "ismaster": self._hello,
            "buildInfo": self._build_info,
            "ping": _fine,
            "endSessions": _fine,
            "saslStart": self._log_in,
            "aggregate": self._aggregate,
            "getMore": self._get_more,
            "killCursors": self._kill_cursors,
            "find": self._find,
            "insert": self._insert,
            "dropDatabase": _fine,
            "listCollections": self._list_collections,
            "listDatabases": self._list_databases,
        }
        if name not in handlers:
            raise Refused(59, f"no such command: '{name}'")
        return {"ok": 1.0, **handlers[name](command)}

    def _hello(self, _: _Document) -> _Document:
        found = {
            "helloOk": True,
            "isWritablePrimary": self.kind != "secondary",
            "maxBsonObjectSize": 16 * 2**20,
            "maxMessageSizeBytes": 48_000_000,
            "maxWriteBatchSize": 100_000,
            "localTime": datetime.now(UTC),
            "logicalSessionTimeoutMinutes": 30,
            "minWireVersion": 0,
            "maxWireVersion": 25,
            "readOnly": False,
        }
        if self.kind == "mongos":
            return {**found, "msg": "isdbgrid"}
        members = sorted((self, *self.others), key=lambda each: each.port)
        primary = next((each for each in members if each.kind == "primary"), None)
        return {
            **found,
            "secondary": self.kind == "secondary",
            "setName": self.history.name,
            "setVersion": 1,
            "hosts": [each.address for each in members],
            "me": self.address,
            **({"primary": primary.address} if primary else {}),
        }

    def _log_in(self, command: _Document) -> _Document:
        """RFC 4616: identity, user and password, a zero byte between them."""
        assert command["mechanism"] == "PLAIN", "others are not scripted"
        if command["payload"].rpartition(b"\0")[2].decode() != self.password:
            raise Refused(18, "Authentication failed.")
        return {"conversationId": 1, "done": True, "payload": b""}

    def _build_info(self, _: _Document) -> _Document:
        return {"version": ".".join(map(str, self.version)), "versionArray": [*self.version, 0]}

    def _aggregate(self, command: _Document) -> _Document:
        """Opens the stream, whatever its token: see `ChangeStreamCursor._assert_history`; or counts
        documents."""
        if "$changeStream" not in command["pipeline"][0]:
            return self._count(command)
        assert command["cursor"] == {"batchSize": 0}, "others are not scripted"
        number = next(self._numbers)
        opened = self._cursors[number] = self._opened(command)
        return _cursor(command, number, "firstBatch", [], opened.token)

    def _opened(self, command: _Document) -> ChangeStreamCursor:
        return ChangeStreamCursor(
            self.history,
            command["$db"],
            command["pipeline"],
            applied=self._readable,
            pause=lambda _: self._stopping.wait(self.scan) and None,
            split_over=self.split_over,
            late=self.late,
        )

    def _count(self, command: _Document) -> _Document:
        """What the driver's `count_documents({})` sends."""
        match, group = command["pipeline"]
        assert (match, group) == ({"$match": {}}, {"$group": {"_id": 1, "n": {"$sum": 1}}})
        found = self.documents.get(f"{command['$db']}.{command['aggregate']}", [])
        return _cursor(command, 0, "firstBatch", [{"_id": 1, "n": len(found)}], None)

    def _get_more(self, command: _Document) -> _Document:
        number = command["getMore"]
        if number not in self._cursors:
            raise Refused(43, f"cursor id {number} not found")
        try:
            batch = self._cursors[number].more(
                command.get("batchSize", 101), command.get("maxTimeMS", 1000) / 1000
            )
        except Refused:
            self._cursors.pop(number, None)
            raise
        return _cursor(command, number, "nextBatch", batch.events, batch.token)

    def _kill_cursors(self, command: _Document) -> _Document:
        for each in command["cursors"]:
            self._cursors.pop(each, None)
        return {"cursorsKilled": command["cursors"]}

    def _find(self, command: _Document) -> _Document:
        namespace = f"{command['$db']}.{command['find']}"
        if namespace in self.denied:
            raise Refused(13, f"not authorized on {command['$db']} to execute command")
        found = self._documents(namespace, command.get("filter", {}))
        limit = command.get("limit", 0)
        return _cursor(command, 0, "firstBatch", found[:limit] if limit else found, None)

    def _documents(self, namespace: str, wanted: _Document) -> list[_Document]:
        if namespace == "local.oplog.rs":
            lowest = time_of(wanted["ts"]["$gte"]) if "ts" in wanted else 0
            times = [each.time for each in self.history.entries]
            return [{"ts": timestamp(each)} for each in times if lowest <= each <= self._readable()]
        if namespace == "local.system.replset":
            return [{"_id": self.history.name, "settings": {"replicaSetId": self.history.id}}]
        if namespace == "config.version" and self.kind == "mongos":
            return [{"_id": 1, "clusterId": self.history.id}]
        return self.documents.get(namespace, [])

    def _insert(self, command: _Document) -> _Document:
        for each in command["documents"]:
            event = inserted(collection=command["insert"], database=command["$db"], **_named(each))
            self.history.write(event)
        return {"n": len(command["documents"])}

    def _list_collections(self, command: _Document) -> _Document:
        names = {
            event["ns"]["coll"]
            for entry in self.history.entries
            for event in entry.events
            if event["ns"]["db"] == command["$db"]
        }
        kinds = {**dict.fromkeys(sorted(names), "collection"), **self.kinds}
        found = [{"name": each, "type": kind, "options": {}} for each, kind in kinds.items()]
        return _cursor({"$db": command["$db"]}, 0, "firstBatch", found, None)

    def _list_databases(self, _: _Document) -> _Document:
        names = {event["ns"]["db"] for entry in self.history.entries for event in entry.events}
        return {"databases": [{"name": each} for each in sorted(names)]}


def _named(document: _Document) -> _Document:
    return {("id_" if name == "_id" else name): value for name, value in document.items()}


def _fine(_: _Document) -> _Document:
    return {}


def _cursor(
    command: _Document, number: int, name: str, found: list[_Document], token: str | None
) -> _Document:
    namespace = f"{command['$db']}.$cmd.aggregate"
    cursor = {"id": Int64(number), "ns": namespace, name: found}
    return {"cursor": cursor | ({"postBatchResumeToken": {"_data": token}} if token else {})}


def _command_of(code: int, body: bytes) -> tuple[_Document, bool]:
    """The command of a message, and whether no answer is wanted."""
    if code == _QUERY:
        start = body.index(b"\0", 4) + 1 + 8
        return bson.decode(body[start:]), False
    assert code == _MESSAGE, code
    (flags,) = struct.unpack_from("<i", body)
    size = struct.unpack_from("<i", body, 5)[0]
    command = bson.decode(body[5 : 5 + size])
    at = 5 + size
    while at < len(body):  # sequences of documents
        assert body[at] == 1
        end = at + 1 + struct.unpack_from("<i", body, at + 1)[0]
        name_end = body.index(b"\0", at + 5)
        name = body[at + 5 : name_end].decode()
        command[name] = bson.decode_all(body[name_end + 1 : end])
        at = end
    return command, bool(flags & _MORE_TO_COME)


def _read(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        some = connection.recv(size - len(found))
        if not some:
            raise EOFError
        found += some
    return bytes(found)
