"""A bad network: a TCP proxy between the pipeline and a server, whose weather can change."""

import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import Literal

_CHUNK = 1 << 16
_TICK = 0.01  # seconds
_RESET = struct.pack("ii", 1, 0)  # closing sends RST, as a router does that lost its table


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """What happens to bytes on their way. The default is a good day.

    `lost`: bytes vanish, and no side is told: in both directions, or only the server's answers.
    A connection that lost bytes never works again, like one whose packets a firewall forgot.
    """

    latency: float = 0.0  # seconds, for each chunk
    rate: int = 0  # bytes a second and direction; 0 is no limit
    lost: Literal["", "all", "answers"] = ""
    refused: bool = False  # new connections are reset
    stalled: bool = False  # bytes wait
    unanswered: bool = False  # a COMMIT arrives, and its connection is reset in place of the answer
    cut: int = -1  # every chunk is cut behind so many bytes, and its connection reset


@dataclass(eq=False)
class _Pair:
    client: socket.socket
    server: socket.socket
    dead: set[str] = field(default_factory=set)  # directions whose end is not told any more
    is_unanswered: bool = False
    ended: list[str] = field(default_factory=list)  # directions that end

    def reset(self) -> None:
        self.dead |= {"questions", "answers"}  # else who is woken here would send FIN before RST
        for one in (self.client, self.server):
            try:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                one.shutdown(socket.SHUT_RD)  # wakes the thread that reads it
            except OSError:
                pass
            one.close()


class Proxy:
    """Listens on a port of its own, for a server that may come and go."""

    def __init__(self, host: str, port: int) -> None:
        self.weather = Weather()
        self._target = (host, port)
        self._pairs: set[_Pair] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._closed = False
        self.asked = 0  # bytes that went to the server
        self.unanswered = 0  # commits
        threading.Thread(target=self._accept, daemon=True).start()

    def turn(self, host: str, port: int) -> None:
        """Stands before another server from now on."""
        self._target = (host, port)
        self.reset()

    def reset(self) -> None:
        """Resets every connection."""
        for pair in list(self._pairs):
            pair.reset()

    def close(self) -> None:
        """Ends everything."""
        self._closed = True
        self._listener.close()
        self.reset()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
                server = client if self.weather.refused else socket.create_connection(self._target)
            except OSError:
                if not self._closed:
                    client.close()
                continue
            pair = _Pair(client, server)
            if self.weather.refused:
                pair.reset()
                continue
            self._pairs.add(pair)
            for direction, source, sink in (
                ("questions", client, server),
                ("answers", server, client),
            ):
                one = threading.Thread(
                    target=self._carry, args=(pair, direction, source, sink), daemon=True
                )
                one.start()

    def _carry(
        self, pair: _Pair, direction: str, source: socket.socket, sink: socket.socket
    ) -> None:
        try:
            while data := source.recv(_CHUNK):
                self._pass_on(pair, direction, sink, data)
            if direction not in pair.dead:  # of a dead connection not even the end is told
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            pair.reset()
        pair.ended.append(direction)
        if len(pair.ended) == 2:
            pair.client.close()
            pair.server.close()
            self._pairs.discard(pair)

    def _pass_on(self, pair: _Pair, direction: str, sink: socket.socket, data: bytes) -> None:
        weather = self.weather
        if weather.lost == "all" or weather.lost == direction:
            pair.dead.add(direction)
        if direction in pair.dead:
            return
        if pair.is_unanswered and direction == "answers":
            raise ConnectionResetError
        if weather.unanswered and direction == "questions" and b"COMMIT\0" in data:
            pair.is_unanswered = True
            self.unanswered += 1
        time.sleep(weather.latency)
        if weather.cut >= 0:
            sink.sendall(data[: weather.cut])
            raise ConnectionResetError
        step = max(int(weather.rate * _TICK), 1) if weather.rate else len(data)
        for start in range(0, len(data), step):
            while self.weather.stalled:
                time.sleep(_TICK)
            sink.sendall(data[start : start + step])
            if direction == "questions":
                self.asked += step
            if weather.rate and self.weather.rate:
                time.sleep(_TICK)
