"""The connection: every kind of credential, TLS, and servers that are none."""

import base64
import hashlib
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nkeys
import orjson
import pytest

from penstock.demo.servers import free_port
from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.nats.api import JetStream
from penstock.nats.connection import Connection, version_of
from penstock.nats.dial import addresses, error_of
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSettings, JetStreamSink
from tests.servers import Nats
from tests.sinks.changes import batch_of
from tests.waiting import until

pytestmark = pytest.mark.live


def opened(url: str, **settings: Any) -> Connection:
    connection = Connection(JetStreamSettings(url=url, **{"timeout": "30s", **settings}))
    connection.open()
    return connection


def test_a_request_is_answered(nats: Nats) -> None:
    connection = opened(nats.url)
    assert connection.version >= (2, 12)
    assert connection.max_payload == 1 << 20
    assert "limits" in JetStream(connection).account()
    connection.close()


INFO = b'INFO {"version":"2.15.1"}\r\n'


@contextmanager
def served(serve: Callable[[socket.socket], object], says: bytes = INFO) -> Iterator[str]:
    """The url of a server that says this to one client, and goes on with `serve`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            client, _ = listener.accept()
            with client:
                client.sendall(says)
                serve(client)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield f"nats://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(60)


def test_what_arrives_with_an_answer_is_kept() -> None:
    """Before it and behind it, and in the order in which it came."""

    def serve(client: socket.socket) -> None:
        read = b""
        while b"PUB " not in read:
            read += client.recv(65536)
            if read.endswith(b"PING\r\n"):
                client.sendall(b"PONG\r\n")
        reply = read.rpartition(b"PUB ")[2].split(b" ")[1]
        inbox = reply.rpartition(b".")[0]
        came = (inbox + b".1", b"a"), (reply, b"b"), (inbox + b".2", b"c"), (inbox + b".3", b"d")
        client.sendall(b"".join(b"MSG %b 1 1\r\n%b\r\n" % one for one in came))
        client.recv(1)

    with served(serve) as url:
        connection = opened(url, timeout="5s")
        assert connection.request("question").payload == b"b"
        assert [message.payload for message in connection.receive(0)] == [b"a", b"c", b"d"]
        connection.close()


def test_more_than_the_sockets_buffers_goes_through(nats: Nats, stream: str) -> None:
    """The server answers each; nobody reads meanwhile but `send` itself."""
    connection = opened(nats.url)
    JetStream(connection).create({"name": stream, "subjects": [stream]})
    line = f"PUB {stream} {connection.inbox}.1 100\r\n{'x' * 100}\r\n".encode()
    connection.send(line * 100_000)
    answers = 0
    while answers < 100_000:
        messages = connection.receive()
        assert messages
        answers += len(messages)
    connection.close()


def test_a_ping_is_not_answered_in_the_middle_of_a_message() -> None:
    """The server pings while it takes a message that is larger than all buffers."""
    size, taken = 50_000_000, bytearray()

    def serve(client: socket.socket) -> None:
        read = b""
        while not read.endswith(b"PING\r\n"):
            read += client.recv(65536)
        client.sendall(b"PONG\r\n")
        taken.extend(client.recv(65536))  # the message has begun
        client.sendall(b"PING\r\n")
        while not taken.endswith(b"x\r\nPONG\r\n") and (more := client.recv(1 << 20)):
            taken.extend(more)

    with served(serve) as url:
        connection = opened(url)
        message = f"PUB a {size}\r\n{'x' * size}\r\n".encode()
        connection.send(message)
        with pytest.raises(Unavailable):
            connection.receive()
    assert taken.endswith(b"x\r\nPONG\r\n")
    assert len(taken) == len(message) + len(b"PONG\r\n")


def test_a_url_list_is_tried_in_order(nats: Nats) -> None:
    connection = opened(f"nats://127.0.0.1:1, {nats.url}")
    assert connection.address == f"127.0.0.1:{nats.port}"
    connection.close()


def test_another_server_of_the_cluster_is_tried_after_those_of_the_list(own_nats: Any) -> None:
    def node(port: int) -> Nats:
        listen = {"name": "c", "listen": f"127.0.0.1:{port}", "routes": routes}
        users = {"users": [{"user": "u", "password": "p"}]}
        return own_nats({"jetstream": False, "cluster": listen, "authorization": users})

    ports = [free_port(), free_port()]
    routes = [f"nats://127.0.0.1:{port}" for port in ports]
    first, second = map(node, ports)
    connection = opened(f"nats://u:p@127.0.0.1:{first.port}")
    deadline = time.monotonic() + 60
    while not any(str(second.port) in url for url in connection.info.get("connect_urls", ())):
        assert time.monotonic() < deadline, "the servers have not found each other"
        connection.receive(0.1)
    first.kill()
    connection.close()
    connection.open()
    assert connection.address == f"127.0.0.1:{second.port}"
    connection.close()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("nats://a:1,b", ["a:1", "b:4222"]),
        ("tls://a", ["a:4222"]),
        ("nats://u:p%40ss@[::1]:5", ["::1:5"]),
    ],
)
def test_addresses_of_a_url(url: str, expected: list[str]) -> None:
    found = addresses(JetStreamSettings(url=url))
    assert [str(address) for address in found] == expected


def test_a_password_in_a_url_may_be_escaped() -> None:
    (address,) = addresses(JetStreamSettings(url="nats://us%3Aer:p%40s%2Fs@h"))
    assert (address.user, address.password) == ("us:er", "p@s/s")


@pytest.mark.parametrize("url", ["", "http://h", "nats://", "nats://h:99999", "nats://h:x", ","])
def test_a_bad_url_is_a_settings_error(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        opened(url)
    assert "nats://user:password@host:4222" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Authorization Violation", SettingsError), ("User Authentication Revoked", SettingsError),
        ("User Authentication Expired", Unavailable),
        ("Account Authentication Expired", Unavailable),
        ('Permissions Violation for Publish to "cdc.a"', SettingsError),
        ("Stale Connection", Unavailable), ("Slow Consumer", Unavailable),
        ("maximum connections exceeded", Unavailable), ("Server Shutdown", Unavailable),
    ],
)  # fmt: skip
def test_each_error_of_the_server_is_a_retry_decision(text: str, kind: type) -> None:
    assert type(error_of(text, "h:1")) is kind


@pytest.mark.parametrize(
    ("text", "version"), [("2.12.1", (2, 12, 1)), ("2.15.0-RC.1", (2, 15, 0)), ("", ())]
)
def test_versions(text: str, version: tuple[int, ...]) -> None:
    assert version_of(text) == version


@pytest.mark.parametrize(
    "says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b'INFO {"version":"2.12.1"}\r\n', b"INFO {"]
)
def test_a_server_that_is_no_nats_server_is_unavailable_in_time(says: bytes) -> None:
    def listen(client: socket.socket) -> None:
        with suppress(OSError):
            while client.recv(65536):
                pass

    with (
        served(listen, says) as url,
        pytest.raises(Unavailable, match=r"127\.0\.0\.1"),
    ):
        opened(url, timeout="200ms")


def test_a_server_that_got_the_credentials_too_late_is_tried_again(own_nats: Any) -> None:
    """A busy machine is no wrong password."""
    users = {"users": [{"user": "u", "password": "p"}], "timeout": 0.2}
    server: Nats = own_nats({"authorization": users})
    with socket.create_connection((server.host, server.port), timeout=60) as silent:
        said = b""
        while data := silent.recv(4096):
            said += data
    error = said.decode().rpartition("-ERR ")[2].strip().strip("'")
    assert isinstance(error_of(error, "host"), Unavailable), error
    assert isinstance(error_of("Authorization Violation", "host"), SettingsError)


def test_a_server_without_jetstream_is_a_settings_error(own_nats: Any) -> None:
    server: Nats = own_nats({"jetstream": False})
    sink = JetStreamSink(JetStreamSettings(url=server.url))
    with pytest.raises(SettingsError, match="has no JetStream"):
        sink.prepare()
    assert [f.level for f in sink.check()] == ["ok", "error"]


def works(url: str, **settings: Any) -> None:
    connection = opened(url, **settings)
    assert "limits" in JetStream(connection).account()
    connection.close()


def refused(url: str, **settings: Any) -> PenstockError:
    with pytest.raises(SettingsError) as caught:
        opened(url, **settings)
    assert caught.value.hint
    return caught.value


def test_a_token(own_nats: Any) -> None:
    server: Nats = own_nats({"authorization": {"token": "t0ken"}})
    works(server.url, token="t0ken")
    works(server.url.replace("//", "//t0ken@"))
    assert "wr0ng" not in str(refused(server.url, token="wr0ng"))


def test_a_user_in_the_settings(own_nats: Any) -> None:
    server: Nats = own_nats({"authorization": {"user": "u", "password": "p"}})
    works(server.url, user="u", password="p")
    refused(server.url)
    refused(server.url, user="u", password="q")


def key(prefix: int) -> tuple[str, Any]:
    seed = nkeys.encode_seed(os.urandom(32), prefix)
    return seed.decode(), nkeys.from_seed(bytearray(seed))


def test_an_nkey(own_nats: Any) -> None:
    seed, pair = key(nkeys.PREFIX_BYTE_USER)
    other, _ = key(nkeys.PREFIX_BYTE_USER)
    public = pair.public_key.decode()
    server: Nats = own_nats({"authorization": {"users": [{"nkey": public}]}})
    works(server.url, nkey=seed)
    assert other not in str(refused(server.url, nkey=other))
    assert "NKEY" in str(refused(server.url, nkey="SUnonsense"))


def _part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(value)).rstrip(b"=").decode()


def jwt(issuer: Any, subject: Any, claims: dict[str, Any], **more: Any) -> str:
    """A NATS JWT (version 2): signed by `issuer`'s key, about `subject`'s."""
    body = {
        **more,
        "iat": 1,
        "iss": issuer.public_key.decode(),
        "sub": subject.public_key.decode(),
        "name": "test",
        "nats": {"version": 2, **claims},
    }
    digest = hashlib.sha512(orjson.dumps(body)).digest()[:32]
    body["jti"] = base64.b32encode(digest).decode().rstrip("=")
    text = f"{_part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_part(body)}"
    signature = base64.urlsafe_b64encode(issuer.sign(text.encode())).rstrip(b"=").decode()
    return f"{text}.{signature}"


UNLIMITED = {
    "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": True,
    "conn": -1, "leaf": -1,
}  # fmt: skip
STORAGE = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}


@pytest.fixture
def issued(own_nats: Any, tmp_path: Path) -> tuple[Nats, Callable[..., Path]]:
    """A server in operator mode, and what writes the .creds file of a user of one account."""
    _, operator = key(nkeys.PREFIX_BYTE_OPERATOR)
    _, system = key(nkeys.PREFIX_BYTE_ACCOUNT)
    _, account = key(nkeys.PREFIX_BYTE_ACCOUNT)
    seed, user = key(nkeys.PREFIX_BYTE_USER)
    accounts = {
        one.public_key.decode(): jwt(
            operator, one, {"type": "account", "limits": {**UNLIMITED, **storage}}
        )
        for one, storage in ((system, {}), (account, STORAGE))
    }
    server = own_nats(
        {
            "operator": jwt(operator, operator, {"type": "operator"}),
            "system_account": system.public_key.decode(),
            "resolver": "MEMORY",
            "resolver_preload": accounts,
        }
    )

    def issue(**more: Any) -> Path:
        claims = {"type": "user", "subs": -1, "data": -1, "payload": -1}
        token = jwt(account, user, claims, **more)
        file = tmp_path / "user.creds"
        file.write_text(
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            "*** IMPORTANT ***\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        )
        return file

    return server, issue


@pytest.fixture
def credentials(issued: tuple[Nats, Callable[..., Path]]) -> tuple[Nats, Path]:
    """A server in operator mode, and the .creds file of a user of one account."""
    server, issue = issued
    return server, issue()


def test_a_jwt_that_ended_is_waited_for_until_its_file_is_renewed(
    issued: tuple[Nats, Callable[..., Path]],
) -> None:
    server, issue = issued
    file = str(issue(exp=int(time.time()) - 1))
    with pytest.raises(Unavailable, match="a JWT that has ended: Authorization Violation"):
        opened(server.url, credentials=file)
    issue(exp=int(time.time()) + 3)
    connection = opened(server.url, credentials=file)
    with pytest.raises(Unavailable, match="User Authentication Expired"):
        until(connection.check, 60)
    issue()
    works(server.url, credentials=file)


def test_a_credentials_file(credentials: tuple[Nats, Path]) -> None:
    server, file = credentials
    works(server.url, credentials=str(file))
    refused(server.url)


def test_a_bad_credentials_file_is_named(tmp_path: Path, nats: Nats) -> None:
    assert "cannot be read" in str(refused(nats.url, credentials=str(tmp_path / "none")))
    (tmp_path / "bad").write_text("s3cret")
    error = refused(nats.url, credentials=str(tmp_path / "bad"))
    assert "is not a NATS credentials file" in str(error)
    assert "s3cret" not in str(error)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    cert, private = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", private, "-out", cert, "-days", "2", "-subj", "/CN=test",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, private


@pytest.mark.parametrize("scheme", ["nats", "tls"])
@pytest.mark.parametrize("delivery", ["exactly-once", "deduplicated"])
def test_tls(scheme: str, delivery: str, own_nats: Any, certificate: tuple[Path, Path]) -> None:
    cert, private = certificate
    # Seconds for a handshake: two by default, which a busy machine takes.
    tls = {"cert_file": str(cert), "key_file": str(private), "timeout": 60}
    server: Nats = own_nats({"tls": tls})
    url = server.url.replace("nats", scheme)
    sink = JetStreamSink(JetStreamSettings(url=url, tls_ca=str(cert), delivery=delivery))
    receipt = sink.write([batch_of(3000, n) for n in range(1, 6)], ignore)
    assert receipt.published == 15000
    assert "is not trusted" in str(refused(url))
    assert "cannot be read" in str(refused(url, tls_ca="/nonexistent/ca.pem"))


def test_client_certificates(own_nats: Any, certificate: tuple[Path, Path]) -> None:
    cert, private = map(str, certificate)
    tls = {"cert_file": cert, "key_file": private, "ca_file": cert, "verify": True, "timeout": 60}
    server: Nats = own_nats({"tls": tls})
    works(server.url, tls_ca=cert, tls_cert=cert, tls_key=private)
    with pytest.raises(PenstockError):
        opened(server.url, tls_ca=cert)


def test_a_server_without_tls_is_not_talked_to_when_tls_is_asked_for(nats: Nats) -> None:
    with pytest.raises(PenstockError):
        opened(nats.url.replace("nats://", "tls://"), user="u", password="s3cret")
