"""`penstock prove` as a user calls it: what holds, what differs, and that nothing is left."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import boto3
import psycopg
import pymongo
import pytest

from penstock.cli.options import settings_of
from penstock.model.errors import SettingsError
from penstock.nats.api import JetStream
from penstock.nats.connection import Connection
from penstock.testing import feeds, living, proof
from penstock.testing.services import SourceService, secrets_of, service_of
from penstock.testing.services.cosmos import CosmosService
from penstock.testing.services.dynamodb import DynamodbService
from tests.cosmos.server import CosmosReply, CosmosServer
from tests.dynamodb.server import StreamsServer
from tests.mongo import REAL, mongodb
from tests.servers import Moto, Nats, Postgres, Secantus
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.process]

made = pytest.mark.skipif(bool(REAL), reason="a stand-in is made so; the server is a real one")

PASSWORD = "s3cret-of-mine"
# As an extension that audits does: each row of a table is written once more.
AUDITS = """
CREATE FUNCTION copied() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF NEW.text = 'row' THEN INSERT INTO one VALUES (NEW.id || '-copy', 'copy'); END IF; RETURN NEW;
END $$;
CREATE FUNCTION audit() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
  IF to_regclass('one') IS NOT NULL AND NOT EXISTS (SELECT FROM pg_trigger WHERE tgname = 'copied')
  THEN CREATE TRIGGER copied AFTER INSERT ON one FOR EACH ROW EXECUTE FUNCTION copied(); END IF;
END $$;
CREATE EVENT TRIGGER audit ON ddl_command_end WHEN TAG IN ('CREATE TABLE')
  EXECUTE FUNCTION audit();
"""


def command(url: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "prove", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PENSTOCK_PROVE_URL": url},
    )


def proven(url: str, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """The exit code, the report, and the progress."""
    process = command(url, "--json", *arguments)
    out, err = process.communicate(timeout=600)
    assert PASSWORD not in out + err
    return process.returncode, json.loads(out) if out else {}, err


def results(report: dict[str, Any]) -> dict[str, str]:
    return {each["claim"]: each["result"] for each in report["claims"]}


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres(settings={"fsync": False, "max_replication_slots": 6}) as made:
        yield made


def with_password(url: str) -> str:
    """Which the server does not ask for."""
    return url.replace("postgres@", f"postgres:{PASSWORD}@", 1)


def left_at(server: Postgres) -> list[Any]:
    return [
        *server.execute("SELECT datname FROM pg_database WHERE datname LIKE 'penstock_prove%'"),
        *server.execute("SELECT slot_name FROM pg_replication_slots"),
    ]


def test_a_postgresql_keeps_the_contract_and_nothing_is_left(server: Postgres) -> None:
    code, report, progress = proven(with_password(server.url))
    found = results(report)
    assert {claim for claim, result in found.items() if result == "not tried"} == {
        "changes go on after a split or a move"
    }
    assert set(found.values()) == {"holds", "not tried"}, report
    assert found["a reader that is killed goes on without a gap or a repetition"] == "holds"
    assert found["rows of a snapshot and the changes after it are the table"] == "holds"
    assert (code, report["holds"], report["left"]) == (0, True, "")
    assert report["version"].startswith("16.")
    assert report["drivers"]["psycopg"]
    assert "resuming after every place gives exactly the rest" in progress
    assert left_at(server) == []


def test_a_server_that_breaks_a_claim_is_reported_and_nothing_is_left(server: Postgres) -> None:
    template = server.url_of("template1")
    with psycopg.connect(template, autocommit=True) as connection:
        connection.execute(AUDITS.encode())
    try:
        code, report, progress = proven(server.url)
    finally:
        with psycopg.connect(template, autocommit=True) as connection:
            connection.execute("DROP EVENT TRIGGER audit; DROP FUNCTION audit, copied")
    found = {each["claim"]: each for each in report["claims"]}
    assert (code, report["holds"]) == (1, False)
    differs = found["each document has its changes in their order"]
    assert differs["result"] == "differs"
    assert "-copy" in differs["detail"]
    assert found["places strictly increase"]["result"] == "holds", "the others are tried"
    assert "differs" in progress
    assert left_at(server) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_after_an_interruption(server: Postgres, number: int) -> None:
    """While a child process follows a slot."""
    process = command(server.url)
    active = "SELECT 1 FROM pg_replication_slots WHERE active AND slot_name LIKE '%_4'"
    until(lambda: server.execute(active) or process.poll() is not None)
    process.send_signal(number)
    out, _ = process.communicate(timeout=120)
    assert "holds" in out
    assert process.returncode == 1
    assert left_at(server) == []


def test_nothing_is_left_where_the_time_is_over(server: Postgres) -> None:
    shown: list[proof.Outcome] = []
    found = proof.prove(service_of(server.url), shown.append, seconds=2.0)
    assert found.claims == shown
    assert found.claims[-1].result == "not tried"
    assert "time of 2 s is over" in found.claims[-1].detail
    assert {each.result for each in shown} <= {"holds", "not tried"}
    assert left_at(server) == []


def test_what_could_not_be_removed_is_named(
    server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = service_of(server.url)
    remove = service.remove
    with monkeypatch.context() as patched:
        patched.setattr(service, "url", server.url.replace("postgres@", "nobody@"))
        patched.setattr(service, "version", str)
        patched.setattr(service, "make", lambda: service._execute)  # type: ignore[attr-defined]
        found = proof.prove(service, lambda _: None, seconds=0.2)
    assert not found.holds
    assert service.makes in found.left
    remove()


def test_a_role_that_may_not_make_a_database_is_told_what_is_needed(server: Postgres) -> None:
    server.execute("CREATE ROLE reader LOGIN")
    code, report, text = proven(server.url.replace("postgres@", f"reader:{PASSWORD}@", 1))
    assert (code, report) == (2, {})
    assert "permission denied" in text
    assert "CREATEDB" in text


@pytest.mark.parametrize("url", ["mysql://root@h/x", "nonsense"])
def test_another_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(SettingsError) as refused:
        service_of(url)
    assert url not in str(refused.value)


def test_a_mongodb_keeps_the_contract_and_nothing_is_left(mongo: str) -> None:
    with pymongo.MongoClient[Any](mongo) as client:
        before = set(client.list_database_names())
        code, report, _ = proven(mongo)
        found = results(report)
        assert set(found.values()) == {"holds", "not tried"}, report
        assert found["rows of a snapshot and the changes after it are the table"] == "holds"
        assert found["a reader that is killed goes on without a gap or a repetition"] == "holds"
        assert (code, report["left"]) == (0, "")
        assert set(client.list_database_names()) == before


@made
@pytest.mark.thorough  # as test_a_server_that_breaks_a_claim, over another source
def test_a_mongodb_that_loses_history_is_reported_and_nothing_is_left() -> None:
    """ChangeStreamHistoryLost, some times."""
    refused = {"failCommands": ["getMore"], "errorCode": 286}
    with mongodb() as url, pymongo.MongoClient[Any](url) as client:
        client.admin.command("configureFailPoint", "failCommand", mode={"times": 3}, data=refused)
        code, report, _ = proven(url)
        found = {each["claim"]: each for each in report["claims"]}
        assert code == 1
        lost = found["each document has its changes in their order"]
        assert lost["result"] == "differs"
        assert "HistoryLost" in lost["detail"]
        assert found["places strictly increase"]["result"] == "differs"
        assert found["a page pickles"]["result"] == "holds"
        assert [name for name in client.list_database_names() if "prove" in name] == []


@made
def test_a_mongodb_without_a_replica_set_is_refused_and_nothing_is_left() -> None:
    with mongodb(standalone=True) as url:
        code, report, text = proven(url)
        assert (code, report) == (2, {}), text
        assert "replica set" in text
        with pymongo.MongoClient[Any](url) as client:
            assert [name for name in client.list_database_names() if "prove" in name] == []


def test_a_mongodb_that_does_not_let_one_in_is_refused_without_the_password() -> None:
    with Secantus(options={"auth": True}) as server:
        code, report, _ = proven(server.url.replace("//", f"//me:{PASSWORD}@", 1))
    assert (code, report) == (2, {})


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("postgresql://me:s%40cret@h/d?sslpassword=other", {"s%40cret", "s@cret", "other"}),
        ("nats://me:one@a,nats://me:two@b", {"one", "two"}),
        ("nats://token@a:4222", {"token"}),
        ("mongodb://h/?tlsCertificateKeyFilePassword=s%3Dcret&w=1", {"s%3Dcret", "s=cret"}),
        ("mongodb://me:one@a,b/?replicaSet=rs0", {"one"}),
        ("cosmos://:a%2Fb%3D@host", {"a%2Fb%3D", "a/b="}),
        ("dynamodb://eu-central-1", set()),
    ],
)
def test_what_must_not_be_printed_of_a_url(url: str, secrets: set[str]) -> None:
    assert secrets <= set(secrets_of(url))


@pytest.mark.parametrize(
    "url", [f"postgresql://me:{PASSWORD}@h/a?dbname=shop", f"postgresql://me:{PASSWORD}@h/a?x=1"]
)
def test_a_url_that_could_lead_to_another_database_is_refused(url: str) -> None:
    with pytest.raises(SettingsError) as refused:
        service_of(url)
    assert PASSWORD not in str(refused.value)


def on_dynamodb(url: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, dict[str, Any], str]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", f"key{os.urandom(4).hex()}")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", PASSWORD)
    return proven("dynamodb://eu-central-1", "--endpoint", url)


def test_a_dynamodb_keeps_the_contract_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    with StreamsServer() as server:
        code, report, _ = on_dynamodb(server.url, monkeypatch)
        found = results(report)
        assert set(found.values()) == {"holds", "not tried"}, report
        assert found["a loss is recorded and stops the partition and is asked for again"] == "holds"
        assert found["a reader that is killed goes on without a gap or a repetition"] == "holds"
        assert (code, report["left"], server.tables) == (0, "", {})


def test_where_moto_differs_is_reported_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Writing an item as it is already is a change; a stream that is disabled is an error."""
    with Moto() as server:
        code, report, _ = on_dynamodb(server.url, monkeypatch)
        found = {each["claim"]: each for each in report["claims"]}
        assert (code, report["left"]) == (1, "")
        detail = found["each document has its changes in their order"]["detail"]
        assert "found {'b': ['INSERT', 'UPDATE', 'DELETE']}" in detail
        assert found["resuming after every place gives exactly the rest"]["result"] == "holds"
        client = boto3.client("dynamodb", endpoint_url=server.url, region_name="eu-central-1")
        assert client.list_tables()["TableNames"] == []


def test_a_price_is_named_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    process = command("dynamodb://eu-central-1")
    out, err = process.communicate("n\n", timeout=60)
    assert process.returncode == 1
    assert "USD" in err
    assert "holds" not in out


def cosmos_url(server: CosmosServer) -> str:
    return f"cosmos://:{quote(server.key, safe='')}@{server.url.removeprefix('http://')}?tls=false"


def test_a_cosmos_db_keeps_the_contract_and_nothing_is_left() -> None:
    with CosmosServer() as server:
        code, report, progress = proven(cosmos_url(server))
        found = results(report)
        assert set(found.values()) == {"holds", "not tried"}, report
        assert found["rows of a snapshot and the changes after it are the table"] == "holds"
        assert found["a loss is recorded and stops the partition and is asked for again"] == "holds"
        assert found["a reader that is killed goes on without a gap or a repetition"] == "holds"
        assert (code, report["left"], server.databases) == (0, "", {})
        assert server.key not in progress + str(report)
        assert quote(server.key, safe="") not in progress + str(report)


class ForgetfulServer(CosmosServer):
    """Each tenth page lacks its last item."""

    def answer(self, verb: str, path: str, headers: dict[str, str], body: Any) -> CosmosReply:
        reply = super().answer(verb, path, headers, body)
        documents = reply.body.get("Documents") if isinstance(reply.body, dict) else None
        if "a-im" in headers and documents and self.counts["feed"] % 10 == 0:
            documents.pop()
        return reply


@pytest.mark.thorough  # as test_a_server_that_breaks_a_claim, over another source
def test_a_cosmos_db_that_loses_changes_is_reported_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CosmosService, "patience", 2.0)
    with ForgetfulServer() as server:
        found = proof.prove(service_of(cosmos_url(server)), lambda _: None)
        by_name = {each.claim: each for each in found.claims}
        lost = by_name["resuming after every place gives exactly the rest"]
        assert (found.holds, lost.result, server.databases) == (False, "differs", {})
        assert "changes came in 2 s" in lost.detail


@pytest.mark.parametrize("url", ["cosmos://", "cosmos://:k@host/a/b/c", "cosmos://:k@host:port"])
def test_a_url_of_cosmos_db_that_names_no_account_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="names no account"):
        service_of(url)


def begun(service: SourceService) -> feeds.StagedFeed:
    feed = service.reader()
    return feeds.StagedFeed(feed=feed, begun=feed.begin("now"), count=0)


def test_changes_go_on_after_a_split_of_cosmos_db() -> None:
    with CosmosServer() as server:

        class Splitting(CosmosService):
            def move(self) -> None:
                server.databases[self.name]["one"].split()

        service = Splitting(cosmos_url(server), {})
        service.make()
        living.changes_go_on_after_a_split_or_a_move(service)
        assert len(server.databases[service.name]["one"].ranges) == 2
        feeds.it_begins_at_a_bookmark_for_each_partition_that_is_plain_json(begun(service))


def test_changes_go_on_after_a_shard_of_dynamodb_was_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", f"key{os.urandom(4).hex()}")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", PASSWORD)
    with StreamsServer() as server:

        class Splitting(DynamodbService):
            def move(self) -> None:
                table = server.tables[self.name]
                assert table.stream is not None
                table.stream.split(table.shard)

        service = Splitting("dynamodb://eu-central-1", {"endpoint": server.url})
        service.make()
        living.changes_go_on_after_a_split_or_a_move(service)
        feeds.it_begins_at_a_bookmark_for_each_partition_that_is_plain_json(begun(service))


def streams(url: str) -> list[str]:
    connection = Connection(settings_of(url, dict.fromkeys(("nkey",))))
    connection.open()
    try:
        return JetStream(connection).names(">")
    finally:
        connection.close()


def test_a_nats_server_keeps_the_contract_and_nothing_is_left() -> None:
    user = {"user": "me", "password": PASSWORD}
    with Nats(config={"authorization": user}) as server:
        url = server.url.replace("//", f"//me:{PASSWORD}@")
        code, report, _ = proven(url)
        assert set(results(report).values()) == {"holds"}, report
        assert len(report["claims"]) > 40
        assert (code, report["service"], report["left"]) == (0, "NATS", "")
        assert report["version"].startswith("2.")
        assert streams(url) == []


def test_a_nats_server_that_breaks_claims_is_reported_and_nothing_is_left() -> None:
    """It lets few streams be made."""
    account = {"jetstream": {"max_streams": 5}, "users": [{"user": "me", "password": PASSWORD}]}
    with Nats(config={"accounts": {"A": account}}) as server:
        url = server.url.replace("//", f"//me:{PASSWORD}@")
        code, report, _ = proven(url)
        assert code == 1
        assert {"holds", "differs"} == set(results(report).values())
        assert "maximum number of streams" in str(report["claims"])
        assert streams(url) == []


def test_a_nats_server_without_jetstream_is_refused() -> None:
    with Nats(config={"jetstream": False}) as server:
        code, _, text = proven(server.url)
    assert code == 2
    assert "JetStream" in text
