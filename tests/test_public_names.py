"""Every module says what it offers, and offers what it says."""

import pickle
import pkgutil
from importlib import import_module

import pytest

import penstock
from penstock import errors

MODULES = [
    module.name
    for module in pkgutil.walk_packages(penstock.__path__, "penstock.")
    if not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_every_name_in_all_is_there(name: str) -> None:
    module = import_module(name)
    offered = getattr(module, "__all__", [])
    assert [each for each in offered if not hasattr(module, each)] == []
    assert len(offered) == len(set(offered))
    # A package without names of its own only holds modules.
    assert offered or hasattr(module, "__path__"), f"{name} has no __all__"


def test_no_two_public_classes_share_a_name() -> None:
    places: dict[str, set[str]] = {}
    for name in MODULES:
        for each, kind in vars(import_module(name)).items():
            if isinstance(kind, type) and kind.__module__ == name and not each.startswith("_"):
                places.setdefault(kind.__name__, set()).add(name)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


@pytest.mark.parametrize("name", sorted(set(errors.__all__)))
def test_every_error_pickles_with_its_data(name: str) -> None:
    kind = getattr(errors, name)
    again = pickle.loads(pickle.dumps(kind("what happened", hint="what to do")))
    assert type(again) is kind
    assert (again.message, again.hint) == ("what happened", "what to do")
    assert str(again) == "what happened (what to do)"
