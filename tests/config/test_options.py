"""Flat Spark options to typed settings and back."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from penstock.config import options_from_settings, settings_from_options
from penstock.model.errors import SettingsError
from penstock.model.settings import Duration, Secret, Settings, Size


class Batch(Settings):
    max_size: int = 500
    max_wait: Duration = 0.1
    max_bytes: Size = 262144


class Step(Settings):
    sql: str


class Model(Settings):
    connection: Secret
    slot: str = "penstock"
    tables: tuple[str, ...] = ()
    ports: list[int] = Field(default=[1, 2])
    batch: Batch = Batch()
    other: Batch | None = None
    encoding: Literal["json", "msgpack"] = "json"
    create: bool = False
    note: str | None = None
    steps: tuple[Step, ...] = ()
    keys: tuple[Secret, ...] = ()
    conf: dict[str, str] = Field(default_factory=dict)


REQUIRED = {"connection": "postgresql://u:hunter22@h/db"}


def read(**options: str) -> Model:
    return settings_from_options(
        Model, REQUIRED | {key.replace("__", "."): text for key, text in options.items()}
    )


def test_keys_nest_by_dots() -> None:
    assert read(batch__max_size="7", batch__max_wait="50ms").batch == Batch(
        max_size=7, max_wait=0.05
    )


def test_keys_ignore_case() -> None:
    assert read(BATCH__Max_Size="7", SLOT="shop") == read(batch__max_size="7", slot="shop")


@pytest.mark.parametrize("text", ["a,b", " a , b ", '["a","b"]'])
def test_a_list_is_written_with_commas_or_as_json(text: str) -> None:
    assert read(tables=text).tables == ("a", "b")


def test_an_empty_list_is_empty() -> None:
    assert read(ports="").ports == []


def test_numbers_and_switches_are_text() -> None:
    found = read(ports="3,4", create="true")
    assert (found.ports, found.create) == ([3, 4], True)


def test_a_map_is_json_or_key_by_key() -> None:
    assert read(conf='{"a.b":"1"}').conf == read(conf__a__b="1").conf == {"a.b": "1"}


def test_a_nested_model_can_be_json() -> None:
    assert read(batch='{"max_size":7}').batch == Batch(max_size=7)


def test_an_optional_nested_model_is_made_by_its_first_option() -> None:
    assert read(other__max_size="7").other == Batch(max_size=7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sloot": "x"}, "option 'sloot': unknown; did you mean 'slot'?"),
        ({"batch.max_sise": "1"}, "option 'batch.max_sise': unknown; did you mean 'max_size'?"),
        ({"slot.x": "1"}, "option 'slot.x': 'slot' has no parts"),
        ({"batch.max_size": "many"}, "option 'batch.max_size': must be a whole number"),
        ({"encoding": "xml"}, "option 'encoding': must be 'json' or 'msgpack'"),
        ({"conf": "{"}, "option 'conf': is not valid JSON"),
        ({"batch": "[]"}, "option 'batch': must be a map"),
        ({"slot": "a", "SLOT": "b"}, "option 'SLOT': is given twice"),
        ({"batch": "1", "batch.max_size": "2"}, "option 'batch.max_size': is given twice"),
        ({"steps": '[{"sqll":"x"}]'}, "option 'steps[0].sqll': unknown key; did you mean 'sql'?"),
    ],
)
def test_a_mistake_names_the_option(options: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as error:
        settings_from_options(Model, REQUIRED | options)
    assert message in error.value.message.splitlines()


def test_all_mistakes_come_at_once() -> None:
    with pytest.raises(SettingsError) as error:
        settings_from_options(Model, {"sloot": "x", "create": "perhaps"})
    assert error.value.message.splitlines() == [
        "option 'sloot': unknown; did you mean 'slot'?",
        "option 'connection': is missing",
        "option 'create': must be true or false",
    ]


def test_a_refused_value_is_not_repeated() -> None:
    with pytest.raises(SettingsError) as error:
        read(batch__max_wait="hunter22", encoding="hunter22")
    assert "hunter22" not in str(error.value)
    assert "is not a duration" in str(error.value)


def test_what_equals_its_default_is_left_out() -> None:
    assert options_from_settings(read()) == REQUIRED


def test_secrets_are_revealed() -> None:
    assert options_from_settings(read(keys="s3,s4"))["keys"] == '["s3","s4"]'


TEXT = st.text(max_size=12) | st.sampled_from(["null", '"null"', '"', "[", "a,b", " ", "true", "1"])
INT64 = st.integers(-(2**63), 2**63 - 1)
DURATION = st.floats(0, 1e9, allow_nan=False) | st.sampled_from([1e-7, 0.1, 0.30000000000000004])
BATCHES = st.builds(Batch, max_size=INT64, max_wait=DURATION, max_bytes=st.integers(0, 2**53))
MODELS = st.builds(
    Model,
    connection=TEXT.map(Secret),
    slot=TEXT,
    tables=st.lists(TEXT, max_size=3).map(tuple),
    ports=st.lists(INT64, max_size=3),
    batch=BATCHES,
    other=st.none() | BATCHES,
    encoding=st.sampled_from(["json", "msgpack"]),
    create=st.booleans(),
    note=st.none() | TEXT,
    steps=st.lists(st.builds(Step, sql=TEXT), max_size=2).map(tuple),
    keys=st.lists(TEXT.map(Secret), max_size=2).map(tuple),
    conf=st.dictionaries(TEXT, TEXT, max_size=2),
)


@pytest.mark.slow
@given(MODELS)
def test_settings_survive_the_way_through_options(model: Model) -> None:
    assert settings_from_options(Model, options_from_settings(model)) == model
