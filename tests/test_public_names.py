"""Modules offer what they say; public names are on a page."""

import ast
import pickle
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import penstock
from penstock.model import errors

MODULES = [
    module.name
    for module in pkgutil.walk_packages(penstock.__path__, "penstock.")
    if not module.name.endswith("__main__")
]


def test_every_name_in_all_is_there_once() -> None:
    for module in map(import_module, MODULES):
        offered = getattr(module, "__all__", [])
        assert [each for each in offered if not hasattr(module, each)] == [], module
        assert len(offered) == len(set(offered)), module


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
    again = pickle.loads(pickle.dumps(kind("what happened", "tests", hint="what to do")))
    assert type(again) is kind
    assert (again.message, again.hint) == ("what happened", "what to do")
    assert str(again) == f"what happened (what to do) [{again.code}]"
    assert again.code.startswith("tests.")


def test_no_file_takes_the_package_for_the_distribution() -> None:
    """`penstock` on the package index is another project; ours is penstock-cdc."""
    wrong = re.compile(
        r"""penstock\[[a-z{]|pip install [^`#\n]*['"` ]penstock(?![\w-])"""
        r"""|\b(?:distribution|version|metadata|requires)\(["']penstock["']\)"""
    )
    root = Path(__file__).parents[1]
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True
    )
    found = [
        f"{name}: {match[0]}"
        for name in listed.stdout.split("\0")
        if name and Path(name) != Path("tests/test_public_names.py")
        for match in wrong.finditer((root / name).read_bytes().decode("utf-8", "replace"))
    ]
    assert found == ["penstock/cli/preflight.py: version('penstock')"]


def documented() -> set[str]:
    page = Path(__file__).parents[1] / "docs" / "reference" / "python.md"
    rows = [line.split("|")[1] for line in page.read_text().splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)", row)}


def typed() -> set[str]:
    """The names that type checkers see."""
    tree = ast.parse(Path(str(penstock.__file__)).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {name.name for node in imports for name in node.names}


def test_the_public_names_are_these_with_types_and_on_a_page() -> None:
    names = set(penstock.__all__)
    assert names == documented()
    assert names == typed() == set(penstock._MODULES)
    assert names <= set(dir(penstock))
    with pytest.raises(AttributeError, match="nothing_of_ours"):
        _ = penstock.nothing_of_ours


@pytest.mark.parametrize(
    ("used", "may_import"),
    [
        ("penstock.__version__", set()),
        ("penstock.Unavailable", set()),
        ("penstock.Place", set()),
        ("penstock.schema", {"pyarrow"}),
        ("penstock.load_pipeline", {"pyarrow"}),
    ],
)
def test_importing_penstock_imports_no_heavy_library(used: str, may_import: set[str]) -> None:
    code = f"import sys, penstock; {used}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"pyspark", "py4j", "pyarrow", "psycopg", "numpy", "pydantic"}
    allowed = may_import | ({"numpy", "pydantic"} if may_import else set())
    assert set(done.stdout.split()) & heavy <= allowed
