"""What counts as secret in settings."""

import pytest

from penstock.config import parse_pipeline, secrets_of
from penstock.model.settings import Secret, Settings


class Inner(Settings):
    token: Secret


class Outer(Settings):
    url: Secret = Secret("")
    plain: str = "plain"
    inner: Inner | None = None
    keys: tuple[Secret, ...] = ()
    named: dict[str, Secret] = {}  # noqa: RUF012 - pydantic copies it


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("postgresql://u:p%40ss@h:5432/db", {"p%40ss", "p@ss"}),
        ("postgresql://h/db?password=other&user=u", {"other"}),
        ("postgresql://h/db", set()),
        ("postgresql://user@h/db", set()),
        ("nats://t0ken@h:4222", {"t0ken"}),
        ("nats://a:one@h,nats://b:two@h", {"one", "two"}),
        ("nats://[broken", {"nats://[broken"}),
        ("SUSEED", {"SUSEED"}),
        ("", set()),
    ],
)
def test_of_a_url_its_password_is_secret(url: str, secrets: set[str]) -> None:
    assert secrets_of(Outer(url=Secret(url))) == secrets


def test_secrets_are_found_at_any_depth() -> None:
    found = Outer(
        inner=Inner(token=Secret("one")),
        keys=(Secret("two"),),
        named={"x": Secret("three")},
    )
    assert secrets_of(found) == {"one", "two", "three"}


def test_the_password_of_a_positions_store_is_a_secret() -> None:
    pipeline = parse_pipeline(
        "positions: postgresql://me:hunter%2122@db/leases\n"
        "backends: [{name: a, type: memory}]\nsink: {type: memory}\n"
    )
    assert {"hunter!22", "hunter%2122"} <= secrets_of(pipeline)
    assert not {"me", "db", "memory"} & secrets_of(pipeline)


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("https://hooks.slack.com/services/T/B/key", {"/services/T/B/key"}),
        ("https://h.logic.azure.com:443/x?sig=a://b", {"/x?sig=a://b"}),
        ("https://h?key", {"?key"}),
        ("http://h/", set()),
        ("HTTP://h/key", {"/key"}),
    ],
)
def test_the_path_of_a_webhook_is_a_secret(url: str, secrets: set[str]) -> None:
    assert secrets_of(Outer(url=Secret(url))) == secrets
