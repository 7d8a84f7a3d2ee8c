"""Leases in etcd: its URL, a cluster, restarts, a login, TLS, and answers that are lost."""

import base64
import pickle
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.leases import Lease, replace
from penstock.leases.etcd import EtcdStore
from penstock.leases.etcd_gateway import EtcdAddress, EtcdGateway
from penstock.model.errors import LeaseLost, PenstockError, SettingsError, Unavailable
from tests.chaos.proxy import Proxy, Weather
from tests.conftest import need_etcd
from tests.servers import Etcd, free_port


@pytest.fixture
def prefix(etcd: Etcd, request: pytest.FixtureRequest) -> str:
    return f"{etcd.url}/{request.node.name}"


def test_a_url_names_servers_prefix_and_login() -> None:
    found = EtcdAddress.parse("etcd://me:p%40ss@one,two:9/penstock/positions?ca=/x.pem")
    assert found.hosts == ("one:2379", "two:9")
    assert (found.prefix, found.user, found.password) == ("penstock/positions", "me", "p@ss")
    assert found.tls
    assert found.files == {"ca": "/x.pem"}
    assert "p@ss" not in repr(found)
    assert EtcdAddress.parse("etcd://[::1]:9,[::2]/a").hosts == ("[::1]:9", "[::2]:2379")
    assert [
        EtcdAddress.parse(url).tls
        for url in ("etcd://h/p", "etcds://h/p", "etcd://h/p?tls=true", "etcd://h/p?tls=false")
    ] == [False, True, True, False]


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/syntrix/puller/checkpoints/", "syntrix/puller/checkpoints"),
        ("//syntrix", "syntrix"),
        ("/%2Fsyntrix", "/syntrix"),
        ("/syntrix/puller/checkpoints/?leading_slash=true", "/syntrix/puller/checkpoints"),
        ("/a?leading_slash=false&tls=true", "a"),
    ],
)
def test_a_leading_slash_of_the_keys_is_an_option(path: str, kept: str) -> None:
    """Without it, positions stay where a URL of earlier versions put them."""
    assert EtcdAddress.parse(f"etcd://h{path}").prefix == kept


def test_keys_with_a_leading_slash_are_where_etcdctl_looks_for_them(etcd: Etcd) -> None:
    store = EtcdStore(f"{etcd.url}/syntrix/puller/checkpoints/?leading_slash=true")
    store.put(Lease(name="orders"))
    with EtcdStore(f"{etcd.url}/any")._gateway() as gateway:
        key = base64.b64encode(b"/syntrix/puller/checkpoints/orders").decode()
        assert gateway.read("/v3/kv/range", {"key": key})["count"] == "1"
    with pytest.raises(SettingsError, match="options that etcd does not have"):
        EtcdStore(f"{etcd.url}/a?leading_slash=perhaps")
    store.close()


def test_a_prefix_is_apart_from_one_that_begins_alike(prefix: str) -> None:
    one, other = EtcdStore(f"{prefix}/a"), EtcdStore(f"{prefix}/ab")
    put = one.put(Lease(name="n"))
    other.put(Lease(name="m"))
    assert one.list("") == [put]
    copy = pickle.loads(pickle.dumps(one))
    assert copy.get("n") == put
    for store in (one, other, copy):
        store.close()


def test_thousands_of_rows_are_put_and_listed_in_few_requests(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    whole = EtcdGateway.send

    def counted(self: EtcdGateway, path: str, body: Any) -> Any:
        sent.append(path)
        return whole(self, path, body)

    monkeypatch.setattr(EtcdGateway, "send", counted)
    store = EtcdStore(prefix)
    rows = [Lease(name=f"p{number:04}", continuation="x" * 500) for number in range(2500)]
    written = store.put_all(rows)
    assert store.list("p") == written
    assert sent.count("/v3/kv/txn") <= 30
    assert sent.count("/v3/kv/range") == 3
    store.close()


def test_large_rows_are_divided_into_writes_that_etcd_takes(prefix: str) -> None:
    store = EtcdStore(prefix)
    rows = [Lease(name=f"p{number}", continuation="é" * 150_000) for number in range(8)]
    assert store.put_all(rows) == store.list("")
    with pytest.raises(PenstockError, match="too large"):
        store.put(Lease(name="q", continuation="x" * 2_000_000))
    assert store.get("q") is None
    store.close()


def test_a_key_that_is_no_lease_is_an_error_with_the_remedy(prefix: str) -> None:
    store = EtcdStore(prefix)
    with store._gateway() as gateway:
        gateway.send("/v3/kv/put", {"key": store._key("other"), "value": "eA=="})
    with pytest.raises(SettingsError, match="no lease") as caught:
        store.list("")
    assert "own" in caught.value.hint
    store.close()


@pytest.mark.fault
def test_a_restart_of_the_server_is_not_noticed(own_etcd: Callable[..., Etcd]) -> None:
    server = own_etcd()
    store = EtcdStore(f"{server.url}/p")
    put = store.put(Lease(name="a", continuation="1"))
    server.kill()
    with pytest.raises(Unavailable, match="no etcd server can be reached") as away:
        store.get("a")
    assert "`positions`" in away.value.hint
    server.start()
    assert store.get("a") == put
    server.kill()
    server.start()
    assert store.put(replace(put, continuation="2")).revision != put.revision
    store.close()


@pytest.mark.fault
def test_a_write_whose_answer_is_lost_is_recognised(own_etcd: Callable[..., Etcd]) -> None:
    server = own_etcd()
    proxy = Proxy(server.host, server.port)
    direct, store = EtcdStore(f"{server.url}/p"), EtcdStore(f"etcd://127.0.0.1:{proxy.port}/p")
    put = store.put(Lease(name="a", owner="me"))
    taken = direct.put(Lease(name="b", owner="other"))
    proxy.weather = Weather(lost="answers")
    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(
            store.put_all, [replace(put, continuation="2"), Lease(name="b", owner="me")]
        )
        while direct.get("a") == put:
            time.sleep(0.02)
        proxy.weather = Weather()
        first, second = writing.result(60)
    assert first == direct.get("a")
    assert isinstance(second, LeaseLost)
    assert direct.get("b") == taken
    for each in (store, direct, proxy):
        each.close()


@pytest.mark.fault
def test_of_a_cluster_any_member_may_be_away(tmp_path: Path) -> None:
    need_etcd()
    peers = {f"m{number}": f"http://127.0.0.1:{free_port()}" for number in range(3)}
    cluster = ",".join(f"{name}={peer}" for name, peer in peers.items())
    members = [
        Etcd(
            tmp_path / name,
            {
                "name": name,
                "initial-cluster": cluster,
                "listen-peer-urls": peer,
                "initial-advertise-peer-urls": peer,
            },
        )
        for name, peer in peers.items()
    ]
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(Etcd.start, members))
    try:
        store = EtcdStore(f"etcd://{','.join(each.endpoint for each in members)}/p")
        row = store.put(Lease(name="a"))
        for member in members:
            member.kill()
            row = _persistently(store, row)
            assert store.get("a") == row
            member.start()
        members[0].kill()
        members[1].kill()
        with pytest.raises(Unavailable):
            store.put(row)
        store.close()
    finally:
        for member in members:
            member.kill()


def _persistently(store: EtcdStore, row: Lease) -> Lease:
    """As the service does: until the cluster has a leader again."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return store.put(store.get("a") or row)
        except Unavailable:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_login_and_what_is_wrong_with_it(own_etcd: Callable[..., Etcd]) -> None:
    server = own_etcd()
    admin = EtcdGateway(EtcdAddress.parse(f"{server.url}/p"))
    for path, body in (
        ("user/add", {"name": "root", "password": "r00t"}),
        ("role/add", {"name": "root"}),
        ("user/grant", {"user": "root", "role": "root"}),
        ("user/add", {"name": "guest", "password": "g"}),
        ("enable", {}),
    ):
        admin.send(f"/v3/auth/{path}", body)
    address = f"{server.endpoint}/p"
    store = EtcdStore(f"etcd://root:r00t@{address}")
    put = store.put(Lease(name="a"))
    assert store.get("a") == put
    server.kill()
    server.start()  # and forgets its tokens
    assert store.get("a") == put
    for login, hint in (("root:s3cret@", "password"), ("", "password"), ("guest:g@", "role")):
        with pytest.raises(SettingsError) as caught:
            EtcdStore(f"etcd://{login}{address}").put(Lease(name="b"))
        assert hint in caught.value.hint
        assert "s3cret" not in str(caught.value)
    for each in (store, admin):
        each.close()


def test_tls_with_a_certificate_of_ones_own(own_etcd: Callable[..., Etcd], tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=etcd", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    server = own_etcd(**{"cert-file": str(cert), "key-file": str(key)})
    store = EtcdStore(f"etcds://{server.endpoint}/p?ca={cert}")
    put = store.put(Lease(name="a"))
    assert store.get("a") == put
    store.close()
    with pytest.raises(SettingsError, match="certificate") as caught:
        EtcdStore(f"etcds://{server.endpoint}/p").get("a")
    assert "ca=" in caught.value.hint
