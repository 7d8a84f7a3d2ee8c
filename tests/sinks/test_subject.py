"""Subjects: templates, escaping, wildcards."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import SettingsError
from penstock.nats.subjects import covers, escape, overlaps, unescape
from penstock.sinks.subject import FIELDS, parse_template

VALUES = {
    "backend": "default",
    "tenant": None,
    "namespace": "public",
    "collection": "users",
    "operation": "INSERT",
    "source_partition": "shop",
    "partition": "3",
}
NAMES = st.text(max_size=20).filter(lambda s: s != "\x00" and not re.search(r"[\ud800-\udfff]", s))


def test_the_default_template_gives_collection_and_operation_in_lower_case() -> None:
    assert parse_template("cdc.{collection}.{operation}").render(VALUES) == "cdc.users.insert"


def test_every_field_can_be_used() -> None:
    text = ".".join(f"{{{name}}}" for name in FIELDS)
    assert parse_template(text).render(VALUES) == "default.%00.public.users.insert.shop.3"


def test_only_the_operation_changes_its_case() -> None:
    assert parse_template("{collection}").render({"collection": "Users"}) == "Users"


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("users", "users"), ("order items", "order%20items"), ("a.b", "a%2Eb"), ("*", "%2A"),
        (">", "%3E"), ("100%", "100%25"), ("tab\there", "tab%09here"),
        ("line\r\nbreak", "line%0D%0Abreak"), ("\x7f", "%7F"), ("no\u00a0break", "no%C2%A0break"),
        ("wide\u3000space", "wide%E3%80%80space"), ("\u1680", "%E1%9A%80"), ("größe", "größe"),
        ("表", "表"), ("", "%00"), (None, "%00"),
    ],
)  # fmt: skip
def test_what_nats_forbids_in_a_token_is_escaped(name: str | None, token: str) -> None:
    assert escape(name) == token
    assert unescape(token) == (name or "")


@pytest.mark.slow
@given(NAMES)
def test_escaping_is_reversible_and_gives_one_token(name: str) -> None:
    token = escape(name)
    assert unescape(token) == name
    assert token
    assert not re.search(r"[\s.*>\x00-\x20\x7f]", token)


@given(NAMES, NAMES)
def test_two_names_never_share_a_token(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "cdc.{table}",
            "known: backend, tenant, namespace, collection, operation, source_partition",
        ),
        ("cdc.{colection}", "did you mean 'collection'"),
        ("cdc.{}", "unknown field"),
        ("cdc.{collection", "unmatched brace"),
        ("cdc.collection}", "unmatched brace"),
        ("cdc..x", "empty token"),
        (".cdc", "empty token"),
        ("cdc.", "empty token"),
        ("", "empty token"),
        ("cdc.*", "wildcard"),
        ("cdc.>", "wildcard"),
        ("cdc. x", "white space"),
        ("$JS.{collection}", "belongs to the server"),
    ],
)
def test_a_bad_template_is_a_settings_error_that_says_why(text: str, says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_template(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "wildcard", "shard"),
    [
        ("cdc.{collection}.{operation}", "cdc.*.*", "cdc.*.*"),
        ("cdc.all", "cdc.all", "cdc.all"),
        ("cdc.{source_partition}.{collection}", "cdc.*.*", "cdc.p%2E1.*"),
        ("cdc.{backend}.{source_partition}.{collection}", "cdc.*.*.*", "cdc.b.p%2E1.*"),
        ("cdc.{backend}-{source_partition}.x", "cdc.*.x", "cdc.b-p%2E1.x"),
        # A wildcard is a whole token: a partition beside a collection cannot be fixed.
        ("cdc.{source_partition}-{collection}", "cdc.*", "cdc.*"),
        ("cdc.{backend}.{collection}", "cdc.*.*", "cdc.b.*"),
        # A hash partition has the changes of all of a source's partitions.
        ("cdc.{backend}.{partition}", "cdc.*.*", "cdc.b.*"),
        ("cdc.{partition}.{source_partition}", "cdc.*.*", "cdc.*.p%2E1"),
        ("x-{collection}.y", "*.y", "*.y"),
    ],
)
def test_the_wildcards_of_a_template(text: str, wildcard: str, shard: str) -> None:
    template = parse_template(text)
    assert template.wildcard == wildcard
    assert template.shard("b", "p.1") == shard


@given(st.fixed_dictionaries(dict.fromkeys(FIELDS, NAMES)))
def test_every_subject_is_covered_by_its_wildcards(values: dict[str, str]) -> None:
    text = "cdc.{backend}.{source_partition}.{partition}.{namespace}-{collection}.{operation}"
    template = parse_template(text)
    subject = template.render(values)
    assert covers(template.wildcard, subject)
    assert covers(template.shard(values["backend"], values["source_partition"]), subject)


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("cdc.>", "cdc.*.*", True), ("cdc.*.*", "cdc.*.*", True),
        ("cdc.*.*", "cdc.users.insert", True), (">", "cdc", True), ("cdc.>", "cdc", False),
        ("cdc.*", "cdc.*.*", False), ("cdc.*.*", "cdc.*", False), ("cdc.users.*", "cdc.*.*", False),
        ("cdc.*", "cdc.>", False), ("orders.>", "cdc.*.*", False),
    ],
)  # fmt: skip
def test_covers(pattern: str, subject: str, expected: bool) -> None:
    assert covers(pattern, subject) is expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("cdc.*.*", "cdc.users.>", True), ("cdc.*.insert", "cdc.users.*", True),
        ("cdc.*", "cdc.*.*", False), ("a.>", "b.>", False), (">", "a", True),
        ("cdc.>", "cdc", False),
    ],
)  # fmt: skip
def test_overlaps(one: str, other: str, expected: bool) -> None:
    assert overlaps(one, other) is expected
    assert overlaps(other, one) is expected
