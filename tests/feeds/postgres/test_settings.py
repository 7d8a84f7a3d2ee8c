"""Settings of a PostgreSQL source: the pipeline file's names, checked before any I/O."""

import pytest
from pydantic import ValidationError

from penstock.feeds.postgres import PostgresSettings
from penstock.feeds.postgres.settings import split_table

URL = "postgresql://user:s3cret@host:5432/db"


def _settings(**more: object) -> PostgresSettings:
    return PostgresSettings.model_validate(
        {"connection": URL, "slot": "shop", "publication": "shop", **more}
    )


def test_the_least_that_must_be_said() -> None:
    settings = _settings()
    assert (settings.name, settings.start, settings.tables) == ("default", "slot", ())


def test_sizes_and_durations_are_read() -> None:
    settings = _settings(memory="1GiB", heartbeat="10s", page_wait="5ms", page_size="64KiB")
    assert (settings.memory, settings.heartbeat) == (2**30, 10.0)
    assert (settings.page_wait, settings.page_size) == (0.005, 65_536)


def test_a_bare_table_is_in_public() -> None:
    assert _settings(tables=["a", "other.b"]).tables == ("public.a", "other.b")


def test_tables_may_come_as_one_text() -> None:
    assert _settings(tables=" a, other.b ,").tables == ("public.a", "other.b")


def test_a_table_may_have_any_characters_behind_the_first_dot() -> None:
    assert split_table("s.Weird name.x") == ("s", "Weird name.x")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"start": "beginning"}, "`snapshot`"),
        ({"start": "now"}, "slot"),
        ({"slot": "Shop"}, "lower case"),
        ({"slot": ""}, "lower case"),
        ({"slot": "x" * 64}, "1 to 63"),
        ({"publication": ""}, "at least 1"),
        ({"tables": ["a."]}, "schema.table"),
        ({"tables": [".a"]}, "schema.table"),
        ({"tenant": "field:"}, "field:<column>"),
        ({"tenant": "fields"}, "field:<column>"),
        ({"name": "a:b"}, "pattern"),
        ({"heartbeat": "soon"}, "duration"),
        ({"heartbeat": 0}, "greater than 0"),
        ({"memory": "much"}, "size"),
        ({"page_rows": 0}, "greater than or equal to 1"),
        ({"connection": "host=x password=s3cret"}, "postgresql://"),
        ({"connection": "mysql://u:s3cret@h/d"}, "postgresql://"),
        ({"connection": "postgresql://u:s3cret@h:99x/d?nope=1"}, "postgresql://"),
        ({"unknown": 1}, "Extra inputs"),
    ],
)
def test_a_mistake_is_named_and_no_secret_is(more: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        _settings(**more)
    assert message in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("tenant", ["none", "database", "field:tenant_id"])
def test_a_tenant_has_three_rules(tenant: str) -> None:
    assert _settings(tenant=tenant).tenant == tenant


def test_the_connection_does_not_print() -> None:
    settings = _settings()
    assert "s3cret" not in f"{settings!r} {settings} {settings.model_dump()}"
