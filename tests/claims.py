"""Claims of `penstock.testing` as parameters of tests."""

from collections.abc import Callable, Iterable, Set
from typing import Any

import pytest


def marked(claims: Iterable[Callable[..., None]], slow: Set[Callable[..., None]]) -> list[Any]:
    """Each by its name; those that are slow without a server are marked."""
    return [
        pytest.param(each, marks=[pytest.mark.slow] if each in slow else [], id=each.__name__)
        for each in claims
    ]
