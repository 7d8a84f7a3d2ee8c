"""Settings from the command line end up where the pipeline file has them."""

import pytest

from bench.variants import merged, pipeline_keys


def test_a_dotted_key_is_a_nested_one() -> None:
    assert pipeline_keys(["sink.batch.max_size=1000", "sink.messages=batch"]) == {
        "sink": {"batch": {"max_size": 1000}, "messages": "batch"}
    }


def test_shortcuts_and_settings_are_merged_and_settings_win() -> None:
    found = pipeline_keys(
        ["{spark: {master: 'local[1]'}}", "sink.encoding=json"],
        messages="batch", encoding="arrow", trigger="realtime", transform="SELECT * FROM changes",
    )  # fmt: skip
    assert found == {
        "sink": {"messages": "batch", "encoding": "json"},
        "spark": {"trigger": "realtime", "master": "local[1]"},
        "transform": [{"sql": "SELECT * FROM changes"}],
    }


def test_nothing_asked_for_is_the_shipped_default() -> None:
    assert pipeline_keys([]) == {}


@pytest.mark.parametrize("text", ["sink", "[1, 2]", ""])
def test_what_is_no_setting_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="no YAML mapping"):
        pipeline_keys([text])


def test_merging_leaves_its_arguments_alone() -> None:
    first = {"sink": {"type": "jetstream"}}
    assert merged(first, {"sink": {"url": "x"}}) == {"sink": {"type": "jetstream", "url": "x"}}
    assert first == {"sink": {"type": "jetstream"}}
