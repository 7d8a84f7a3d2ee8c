"""The page's configuration on a real server: its users may do what they need, and no more."""

import json
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from penstock.config import parse_pipeline
from penstock.consumer.tail.reader import TailReader
from penstock.leases import Lease
from penstock.model.change import ERROR
from penstock.model.errors import SettingsError
from penstock.nats.api import JetStream
from penstock.nats.connection import Connection
from penstock.nats.settings import NatsSettings
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSettings, JetStreamSink
from penstock.sinks.jetstream.owners import OwnersStore
from penstock.sinks.jetstream.server import JetStreamServer
from tests.docs.pages import DOCS, blocks
from tests.servers import Nats
from tests.sinks.changes import batch_of

PAGE = (DOCS / "how-to" / "nats.md").read_text()
PASSWORDS = {"PENSTOCK_PASSWORD": "writes", "CONSUMER_PASSWORD": "reads"}


class AsWritten(Nats):
    """A server with the page's configuration, in this folder and on this port."""

    def _configuration(self) -> str:
        [text] = blocks(PAGE, "hocon")
        text = text.replace("/etc/nats", str(self.folder)).replace(
            "/var/lib/nats", str(self.folder / "jetstream")
        )
        # Two seconds for a handshake are short on a busy machine.
        text = text.replace("tls {", "tls {\n  timeout: 60")
        for name, value in PASSWORDS.items():
            text = text.replace(f"${name}", value)
        name = self._server_name
        return f"host: {self.host}\nport: {self.port}\nserver_name: {name}\n{text}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsWritten]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("nats")
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1", "-addext",
            "subjectAltName=IP:127.0.0.1", "-keyout", folder / "server.key",
            "-out", folder / "server.crt",
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    with AsWritten(folder=folder) as server:
        yield server


def settings(server: Nats) -> JetStreamSettings:
    """The sink of the page's pipeline file, for this server."""
    text = next(block for block in blocks(PAGE, "yaml") if "backends:" in block)
    text = text.replace("nats.example.com:4222", f"{server.host}:{server.port}")
    text = text.replace("/etc/nats/ca.crt", str(server.folder / "server.crt"))
    found = parse_pipeline(text, environment={"PG_URL": "postgresql://h/d", **PASSWORDS})
    assert isinstance(found.sink.settings, JetStreamSettings)
    return found.sink.settings


def test_the_pipeline_may_do_all_that_it_needs(server: AsWritten) -> None:
    sink = JetStreamSink(settings(server).model_copy(update={"on_error": "dead-letter"}))
    assert [finding for finding in sink.check() if finding.level == "error"] == []
    sink.prepare()
    assert [f.message for f in sink.check() if f.subject == "delivery"] == [
        "exactly-once: the stream takes atomic batches"
    ]
    poison = batch_of(
        1,
        2,
        operation=ERROR,
        key=None,
        after='{"reason": "not-utf8", "error": "e", "raw": "", "context": ""}',
    )
    sink.write([batch_of(3), poison, batch_of(1, 3)], ignore)
    server_at = JetStreamServer(sink.settings)
    info = server_at.stream_info("CDC")
    assert info is not None
    assert info["state"]["messages"] == 4
    [letter] = sink.dead_letters()
    assert letter["reason"] == "not-utf8"
    assert sink.tables() == []
    rows = OwnersStore(sink.settings)
    put = rows.put(Lease(name="owner:shop", owner="me"))
    assert rows.list("") == [put]
    rows.close()
    assert (
        server_at.announce("penstock.gap.default", {"id": "1"}, identity="1") == "PENSTOCK_EVENTS"
    )


def test_the_pipeline_may_not_write_elsewhere(server: AsWritten) -> None:
    elsewhere = {"subject": "other.{collection}", "stream": "OTHER"}
    sink = JetStreamSink(settings(server).model_copy(update=elsewhere))
    assert any("permission" in f.message.lower() for f in sink.check() if f.level == "error")


def test_the_consumer_may_read_and_not_write(
    server: AsWritten, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(server.folder / "server.crt"))
    url = f"tls://consumer:reads@{server.host}:{server.port}"
    JetStreamSink(settings(server)).write([batch_of(1, 9)], ignore)
    with TailReader(url, "CDC") as reader:
        assert reader.fetch(1, 10.0)
    connection = Connection(NatsSettings(url=url, tls_ca=str(server.folder / "server.crt")))
    connection.open()
    with pytest.raises(SettingsError):
        JetStream(connection).publish("cdc.items.insert", b"NATS/1.0\r\n\r\n", b"")
    connection.close()


def test_the_stream_of_the_page_takes_exactly_once(nats: Nats) -> None:
    [config] = [json.loads(block) for block in blocks(PAGE, "json")]
    config |= {"name": "HOWTO", "subjects": ["howto.>"]}
    connection = Connection(NatsSettings(url=nats.url))
    connection.open()
    JetStream(connection).create(config)
    connection.close()
    mine = JetStreamSettings(url=nats.url, stream="HOWTO", subject="howto.{collection}")
    sink = JetStreamSink(mine)
    assert all(finding.level == "ok" for finding in sink.check())
    assert (
        sink.write([batch_of(2)], ignore).numbers.get("delivery", "exactly-once") == "exactly-once"
    )
