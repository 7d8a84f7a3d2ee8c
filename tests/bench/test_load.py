"""What is asked for with `--load`."""

import pytest

from bench.latency import Load


@pytest.mark.parametrize(
    ("text", "load"),
    [
        ("10000x100", Load(rate=10_000, size=100)),
        ("7", Load(rate=7, size=1)),
        ("10000x1:async", Load(rate=10_000, size=1, asynchronous=True)),
    ],
)
def test_a_load_is_a_rate_and_a_size(text: str, load: Load) -> None:
    assert Load.parse(text) == load


@pytest.mark.parametrize("text", ["", "0x1", "5x-1", "10x10:sync", "tenx1"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Load.parse(text)
