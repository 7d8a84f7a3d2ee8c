"""Questions to JetStream that need more than one answer."""

from penstock.nats.api import JetStream
from penstock.nats.connection import Connection
from penstock.nats.settings import NatsSettings
from tests.servers import Nats


def test_more_streams_are_named_than_one_answer_has() -> None:
    with Nats() as server:
        connection = Connection(NatsSettings.model_validate({"url": server.url, "timeout": 60}))
        connection.open()
        api, names = JetStream(connection), [f"S{number}" for number in range(1030)]
        for name in names:
            api.create({"name": name, "subjects": [f"{name}.>"], "storage": "memory"})
        assert sorted(api.names(">")) == sorted(names)
        assert api.names("S7.a") == ["S7"]
        api.delete("S7")
        api.delete("S7")
        assert len(api.names(">")) == 1029
        connection.close()
