"""SeaweedFS: a server of S3 with conditional puts; and one before it that fails as S3 does."""

import http.client
import signal
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal, Self

from penstock.demo.servers import EmbeddedServer, answers, beside_python, free_port

Fault = Literal["refused", "lost", "slow"]


class Seaweed(EmbeddedServer):
    """Master, volume server, filer and S3 in one process; any login may do everything."""

    stops_on = signal.SIGKILL  # its own way takes half a minute, and nothing is kept

    def __init__(self, folder: Path | str | None = None) -> None:
        self.bin = beside_python("weed", extra="dev")
        super().__init__("seaweed", folder)

    def _command(self, *, again: bool) -> Sequence[str]:
        (data := self.folder / "data").mkdir(exist_ok=True)
        ports = {
            name: free_port()
            for each in ("master", "volume", "filer")
            for name in (f"{each}.port", f"{each}.port.grpc")
        }
        options = {
            "dir": data, "ip": self.host, "ip.bind": self.host, "master.telemetry": "false",
            "s3.port": self.port, "s3.port.grpc": free_port(), "s3.port.iceberg": 0,
            "s3.port.lance": 0, **ports,
            "volume.max": 500,  # each bucket has some
        }  # fmt: skip
        return [str(self.bin), "server", "-filer", "-s3",
                *(f"-{name}={value}" for name, value in options.items())]  # fmt: skip

    def _ready(self) -> bool:
        return answers(self.url)


class FaultyS3:
    """Passes requests on to a server, but for writes while there are `faults` left: `refused` are
    answered with 503 and not passed on, `lost` are done and not answered, `slow` are answered
    after half a second. What it has done is in `done`."""

    def __init__(self, port: int) -> None:
        self.faults: list[Fault] = []
        self.done: list[Fault] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                fault = outer.faults.pop(0) if self.command == "PUT" and outer.faults else None
                if fault is not None:
                    outer.done.append(fault)
                if fault == "refused":
                    self.say(503, {"Retry-After": "1"}, b"<Error><Code>SlowDown</Code></Error>")
                    return
                server = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                server.request(self.command, self.path, body, dict(self.headers.items()))
                found = server.getresponse()
                content = found.read()
                server.close()
                if fault == "lost":
                    self.close_connection = True
                    return
                if fault == "slow":
                    time.sleep(0.5)
                self.say(found.status, dict(found.headers.items()), content)

            def say(self, status: int, headers: dict[str, str], content: bytes) -> None:
                self.send_response_only(status)
                for name, value in headers.items():
                    if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(name, value)
                length = headers.get("Content-Length", "0")
                is_head = self.command == "HEAD"
                self.send_header("Content-Length", length if is_head else str(len(content)))
                self.end_headers()
                self.wfile.write(b"" if is_head else content)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
