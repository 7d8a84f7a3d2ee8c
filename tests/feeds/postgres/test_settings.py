"""Settings of a PostgreSQL source: the pipeline file's names, checked before any I/O."""

import pytest
from pydantic import ValidationError

from penstock.config import options_from_settings, settings_from_options
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
        ({"slot": "x" * 64}, "1 to 63"),
        ({"connection": ""}, "give connection, or sources"),
        ({"sources": [{"sid": "a", "connection": URL}]}, "give connection, or sources"),
        ({"connection": "", "sources": [{"sid": "a", "connection": URL}]}, "slot and sid are for"),
        ({"sid": "a:b"}, "pattern"),
        ({"tables": ["a.~("]}, "no regular expression"),
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
        ({"connection": "postgresql://u:s3cret@h:99x/d?nope=1"}, "no option nope"),
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


SOURCES = [{"sid": "EU-1", "connection": URL}, {"sid": "us", "connection": URL}]


def _several(**more: object) -> PostgresSettings:
    return PostgresSettings.model_validate({"name": "shop", "sources": SOURCES, **more})


def test_each_source_has_names_of_its_own_at_its_server() -> None:
    assert [(each.partition, each.slot, each.publication, each.is_managed)
            for each in _several().each] == [
        ("EU-1", "penstock_shop_eu_1", "penstock_shop_eu_1", True),
        ("us", "penstock_shop_us", "penstock_shop_us", True),
    ]  # fmt: skip
    shared = _several(publication="mine").each
    assert [(each.slot, each.publication, each.is_managed) for each in shared] == [
        ("penstock_shop_eu_1", "mine", False), ("penstock_shop_us", "mine", False),
    ]  # fmt: skip


def test_one_source_may_have_a_name_too() -> None:
    named = PostgresSettings.model_validate({"connection": URL, "sid": "eu"})
    assert (named.partition, named.slot) == ("eu", "penstock_default_eu")
    plain = PostgresSettings.model_validate({"connection": URL})
    assert (plain.partition, plain.slot) == ("penstock_default", "penstock_default")


def test_names_that_collide_at_a_server_are_refused() -> None:
    twice = [{"sid": "a-b", "connection": URL}, {"sid": "a.b", "connection": URL}]
    with pytest.raises(ValidationError, match="both have the slot penstock_shop_a_b"):
        _several(sources=twice)


def test_sources_are_options_and_secret() -> None:
    settings = _several(tables=["a", "public.~b_[0-9]{1,3}"])
    assert settings_from_options(PostgresSettings, options_from_settings(settings)) == settings
    assert "s3cret" not in f"{settings!r} {settings.each!r}"


def test_tables_are_followed_by_name_and_by_pattern() -> None:
    settings = _settings(tables=["a", "other.~b_[0-9]+"])
    followed = [("public", "a"), ("other", "b_1"), ("other", "b_23")]
    assert all(settings.follows(*table) for table in followed)
    left = [("public", "b_1"), ("other", "b_"), ("other", "b_1x"), ("other", "a")]
    assert not any(settings.follows(*table) for table in left)
