"""A plug-in says what it can; no module asks which one it is."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock


def _asked(file: Path) -> Iterator[str]:
    """The types that a module asks for by `isinstance`."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
            for name in ast.walk(node.args[1]):
                yield getattr(name, "id", "") or getattr(name, "attr", "")


@pytest.mark.slow
def test_no_module_asks_for_a_type_of_settings() -> None:
    files = Path(str(penstock.__file__)).parent.rglob("*.py")
    found = {(file.name, name) for file in files for name in _asked(file)}
    assert {name for _, name in found} >= {"KeepsLetters", "LoadsTables"}  # it sees what is asked
    found = {one for one in found if one[1] != "Settings"}  # any model names no plug-in
    assert {one for one in found if one[1].endswith("Settings")} == set()
