"""What passes by itself is Unavailable in every driver, and what the operator must change is a
setting: names that are not resolved now, handshakes that are cut, credentials that come late."""

import json
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import dns.resolver
import pytest
from azure.core.exceptions import ClientAuthenticationError

from penstock.feeds.cosmos.failures import translating as cosmos
from penstock.feeds.dynamodb import DynamodbFeed, DynamodbSettings
from penstock.feeds.mongodb import MongoFeed, MongoSettings
from penstock.feeds.mongodb.feed import PARTITION
from penstock.feeds.postgres.failures import failure
from penstock.leases.etcd import EtcdStore
from penstock.leases.mongodb import MongoStore
from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.model.position import Bookmark
from penstock.nats.dial import error_of
from penstock.stream import Stream
from tests.dynamodb.server import StreamsServer, settings_of

Ask = Callable[[], object]

_ALERT = bytes([21, 3, 3, 0, 2, 2, 80])  # fatal: internal_error, of an overloaded proxy


def kind_of(ask: Ask) -> type[PenstockError]:
    with pytest.raises(PenstockError) as caught:
        ask()
    return type(caught.value)


@contextmanager
def accepting(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port of loopback whose connections are served one after the other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        serve(connection)

        threading.Thread(target=run, daemon=True).start()
        yield listener.getsockname()[1]


# Names.


def _answering(rcode: int | None) -> Callable[[socket.socket], None]:
    def run(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                data, peer = server.recvfrom(4096)
                if rcode is not None:
                    head = data[:2] + struct.pack(">H", 0x8180 | rcode) + data[4:6] + bytes(6)
                    server.sendto(head + data[12:], peer)

    return run


@pytest.fixture(params=[(None, True), (2, True), (5, True), (3, False)],
                ids=["silent", "SERVFAIL", "REFUSED", "NXDOMAIN"])  # fmt: skip
def passes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Whether it passes that the DNS server answers so."""
    rcode, found = request.param
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        threading.Thread(target=_answering(rcode), args=(server,), daemon=True).start()
        resolver = dns.resolver.Resolver(configure=False)
        resolver.nameservers, resolver.port = ["127.0.0.1"], server.getsockname()[1]
        monkeypatch.setattr(dns.resolver, "default_resolver", resolver)
        yield found


_URL = "mongodb+srv://me:s3cret@cluster0.abcde.mongodb.net/shop"


@pytest.mark.slow
@pytest.mark.parametrize("what", ["follow", "begin", "beginning", "positions"])
def test_a_name_of_mongodb_that_is_not_resolved_now(passes: bool, what: str) -> None:
    feed = MongoFeed(MongoSettings.model_validate({"connection": _URL, "connect_timeout": 1}))
    asked: dict[str, Ask] = {
        "follow": lambda: feed.follow(PARTITION, Bookmark(mark={"token": {"_data": "82" * 9}})),
        "begin": lambda: feed.begin("now"),
        "beginning": lambda: feed.begin("beginning"),
        "positions": lambda: MongoStore(_URL).get("a"),
    }
    assert kind_of(asked[what]) is (Unavailable if passes else SettingsError)


@pytest.mark.parametrize(
    "text",
    [
        "failed to resolve host 'db': [Errno -3] Temporary failure in name resolution",
        'could not translate host name "db" to address: Temporary failure in name resolution',
        'could not translate host name "db" to address: Name or service not known',
        "SSL error: unexpected eof while reading",
        "SSL SYSCALL error: Connection reset by peer",
        "SSL error: tlsv1 alert internal error",
        "server closed the connection unexpectedly",
    ],
)
def test_what_libpq_says_of_a_network_that_is_away(text: str) -> None:
    assert isinstance(failure(None, text, "connecting"), Unavailable)


# Handshakes.


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and certificate of 127.0.0.1, which nothing trusts."""
    path = tmp_path_factory.mktemp("tls") / "own.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=own", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", path, "-out",
         path.with_suffix(".crt")],
        check=True, capture_output=True,
    )  # fmt: skip
    return path


def _cut(connection: socket.socket) -> None:
    connection.recv(4096)


def _alerted(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(_ALERT)


def _reset(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _asks(port: int) -> dict[str, Ask]:
    given = {"table": "users", "endpoint": f"https://127.0.0.1:{port}", "region": "eu-central-1"}
    keys = {"access_key": "a", "secret_key": "b"}
    return {
        "dynamodb": DynamodbFeed(DynamodbSettings.model_validate(given | keys)).partitions,
        "etcd": lambda: EtcdStore(f"etcds://127.0.0.1:{port}/p").get("a"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("serve", [_cut, _alerted, _reset])
@pytest.mark.parametrize("driver", ["dynamodb", "etcd"])
def test_a_handshake_that_the_other_side_ends_passes(
    driver: str, serve: Callable[[socket.socket], None]
) -> None:
    with accepting(serve) as port:
        assert issubclass(kind_of(_asks(port)[driver]), Unavailable)


@pytest.mark.parametrize("driver", ["dynamodb", "etcd"])
def test_a_certificate_that_is_not_trusted_is_a_setting(driver: str, certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.with_suffix(".crt"), certificate)

    def serve(connection: socket.socket) -> None:
        context.wrap_socket(connection, server_side=True)

    with accepting(serve) as port:
        assert issubclass(kind_of(_asks(port)[driver]), SettingsError)


# Credentials.


_CREDENTIALS = {"Code": "Success", "AccessKeyId": "late", "SecretAccessKey": "b", "Token": "c",
                "Expiration": "2099-01-01T00:00:00Z"}  # fmt: skip


class _Metadata(BaseHTTPRequestHandler):
    """IMDSv2 of a machine with a role. Fails while `failures` counts down."""

    failures = 0

    def do_PUT(self) -> None:
        self._send("token")

    def do_GET(self) -> None:
        is_role = self.path.endswith("/role")
        self._send(json.dumps(_CREDENTIALS) if is_role else "role")

    def _send(self, text: str) -> None:
        kind = type(self)
        kind.failures -= 1
        status = 500 if kind.failures >= 0 else 200
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_credentials_that_a_metadata_service_does_not_give_once_are_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with StreamsServer() as server, HTTPServer(("127.0.0.1", 0), _Metadata) as metadata:
        threading.Thread(target=metadata.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{metadata.server_address[1]}"
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", url)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
        stream = server.stream("users")
        stream.put(stream.shard(), "a", at=server.now)
        feed = DynamodbFeed(settings_of(server, access_key=None, secret_key=None))
        _Metadata.failures = 2  # the token, which is left out, and the name of the role
        assert kind_of(feed.partitions) is Unavailable
        _Metadata.failures = 0
        assert next(Stream(feed, at="trim_horizon"))["key"] == {"id": "a"}
        metadata.shutdown()


def test_an_identity_without_an_answer_passes_and_one_that_is_refused_is_a_setting() -> None:
    def raising(status: int | None) -> Ask:
        def ask() -> None:
            error = ClientAuthenticationError("ManagedIdentityCredential is unavailable")
            error.status_code = status
            with cosmos("reading"):
                raise error

        return ask

    assert kind_of(raising(None)) is Unavailable
    assert kind_of(raising(401)) is SettingsError


def test_a_nats_server_that_is_too_busy_to_log_us_in_refuses_no_credentials() -> None:
    assert isinstance(error_of("Authentication Timeout", "nats://h"), Unavailable)
    assert isinstance(error_of("Authorization Violation", "nats://h"), SettingsError)
