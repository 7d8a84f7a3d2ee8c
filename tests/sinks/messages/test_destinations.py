"""Subjects with the hash partition and the source's partition, and what shares a message then."""

from typing import Any

import pytest

from penstock.consumer.tail.bodies import changes_of
from penstock.microbatch.late import as_changes
from penstock.model.errors import SettingsError
from tests.sinks.changes import batch_of, encoded

pytestmark = pytest.mark.usefixtures("way")
ENCODINGS = ["json", "msgpack", "arrow"]


def subjects(batch: Any, template: str, **settings: Any) -> list[str]:
    found = encoded(batch, template, **settings).subjects.to_pylist()
    return [subject.decode() for subject in found]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("cdc.{partition}", ["cdc.3", "cdc.0", "cdc.1023"]),
        ("{partition}.{collection}.{partition}", ["3.items.3", "0.items.0", "1023.items.1023"]),
        ("c.{source_partition}.{partition}", ["c.shop.3", "c.shop.0", "c.shop.1023"]),
        ("c.{partition}-{source_partition}.x", ["c.3-shop.x", "c.0-shop.x", "c.1023-shop.x"]),
        ("c.{source_partition}", ["c.shop"] * 3),
    ],
)
def test_a_subject_has_the_numbers_of_its_change(template: str, expected: list[str]) -> None:
    batch = batch_of(3, route=[3, 0, 1023])
    assert subjects(batch, template) == expected
    packed = subjects(batch, template, messages="batch")
    assert packed == (expected if "{partition}" in template else expected[:1])


def test_a_change_without_a_number_is_in_the_first_partition() -> None:
    assert subjects(batch_of(2), "cdc.{partition}") == ["cdc.0"] * 2
    assert subjects(batch_of(2, route=[None, 5]), "cdc.{partition}") == ["cdc.0", "cdc.5"]


@pytest.mark.parametrize("route", [-1, 1024, 2_000_000_000])
@pytest.mark.parametrize("packing", ["change", "batch"])
def test_a_number_that_no_partition_has_is_refused(packing: str, route: int) -> None:
    with pytest.raises(SettingsError, match="has the hash partition"):
        encoded(batch_of(2, route=[0, route]), "cdc.{partition}", messages=packing)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_message_has_changes_of_one_hash_partition_in_order(encoding: str) -> None:
    routes = [number * 7 % 4 for number in range(40)]
    batch = batch_of(40, route=routes)
    messages = encoded(batch, "cdc.{partition}", messages="batch", encoding=encoding)
    assert sorted(messages.subjects.to_pylist()) == [b"cdc.%d" % number for number in range(4)]
    assert messages.changes == 40
    kind = {"Content-Type": "application/vnd.apache.arrow.stream"} if encoding == "arrow" else {}
    for subject, body in zip(messages.subjects, messages.bodies, strict=True):
        ids = [change["event_id"] for change in changes_of(kind, body.as_py())]
        number = int(subject.as_py()[4:])
        every = batch.column("event_id").to_pylist()
        assert ids == [one for one, route in zip(every, routes, strict=True) if route == number]


@pytest.mark.parametrize("operation", ["TRUNCATE", "DROP", "RENAME", "MESSAGE"])
def test_no_hash_partition_passes_what_concerns_the_whole_table(operation: str) -> None:
    operations = ["INSERT", "INSERT", operation, "INSERT", "INSERT"]
    batch = batch_of(5, route=[1, 2, 0, 2, 1], operation=operations)
    messages = encoded(batch, "cdc.{partition}", messages="batch")
    assert [place.as_py() for place in messages.keys.ordinals] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_changes_that_came_without_the_version_of_their_schema_are_encoded(encoding: str) -> None:
    whole = batch_of(3)
    came = as_changes(whole.drop_columns(["schema_version"]))
    form = {"encoding": encoding, "messages": "batch" if encoding == "arrow" else "change"}
    found, wanted = (encoded(one, "cdc.{collection}", **form) for one in (came, whole))
    for name in ("subjects", "headers", "bodies"):
        assert getattr(found, name).to_pylist() == getattr(wanted, name).to_pylist()
