"""A release run never passes by not running; a fast one starts no server."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Where the conftest finds the modules of the tests.
ROOT = str(Path(__file__).parents[1])

SKIPPED = {
    "test": "import pytest\ndef test_it(): pytest.skip('not here')",
    "mark": "import pytest\n@pytest.mark.skip\ndef test_it(): pass",
    "fixture": (
        "import pytest\n@pytest.fixture\ndef gone(): pytest.skip('not here')\n"
        "def test_it(gone): pass"
    ),
    "module": "import pytest\npytest.importorskip('no_such_module')\ndef test_it(): pass",
}

LIVE = {
    "fixture": "def test_it(nats): pass",
    "other_fixture": "def test_it(database): pass",
    "test": "def test_it(): Nats()",
    "function": "def start(): return Nats()\ndef test_it(): assert start()",
    "inner": "def test_it():\n    def start(): return Nats()\n    assert start()",
    "own_fixture": "@pytest.fixture\ndef own(): yield Nats()\ndef test_it(own): pass",
    "annotated": "def test_it(nats: Nats): pass",
    "named": "def test_it(tmp_path): assert Nats",
}
PROCESS = {
    "run": "import subprocess\ndef test_it(): subprocess.run(['true'])",
    "context": (
        "import multiprocessing\nSPAWN = multiprocessing.get_context('spawn')\n"
        "def test_it(): SPAWN.Process().start()"
    ),
}
HEAD = "import pytest\nfrom tests.servers import Nats\n"
BY_NAME = """
import pytest

@pytest.fixture(params=["tmp_path", "nats"])
def any_case(request): return request.getfixturevalue(request.param)

def test_it(any_case): pass
"""


def run(folder: Path, cases: dict[str, str], *arguments: str, strict: bool = False) -> list[str]:
    """What pytest prints of these files, with the suite's own conftest where it is in the suite: in
    a folder below the one that pytest is started in; a line each."""
    conftest = Path(__file__).with_name("conftest.py").read_text()
    folder = folder / "tests"
    folder.mkdir()
    (folder / "conftest.py").write_text(conftest)
    for name, case in cases.items():
        (folder / f"test_{name}.py").write_text(case)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-qrA", "-p", "no:cacheprovider", *arguments, "tests"],
        cwd=folder.parent,
        env={**os.environ, "PYTHONPATH": ROOT, "PENSTOCK_TEST_NO_SKIP": "1" if strict else ""},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("strict", [False, True])
def test_a_skip_is_a_failure_only_in_a_release_run(strict: bool, tmp_path: Path) -> None:
    cases = {**SKIPPED, "other": "def test_it(): pass"}
    printed = run(tmp_path, cases, "--continue-on-collection-errors", strict=strict)
    failed = {
        name
        for name in SKIPPED
        for line in printed
        if line.startswith(("FAILED", "ERROR")) and f"test_{name}.py" in line
    }
    assert failed == (set(SKIPPED) if strict else set()), "\n".join(printed)
    assert strict or any(line.startswith("1 passed, 4 skipped") for line in printed)


def test_who_starts_a_server_is_live(tmp_path: Path) -> None:
    cases = {name: HEAD + case for name, case in LIVE.items()}
    cases["none"] = HEAD + "def test_it(tmp_path): pass"
    printed = run(tmp_path, cases, "--collect-only", "-m", "not live")
    assert [line for line in printed if "::" in line] == ["tests/test_none.py::test_it"]


def test_who_starts_a_process_is_marked(tmp_path: Path) -> None:
    cases = {**PROCESS, "none": "import subprocess\ndef test_it(): pass"}
    printed = run(tmp_path, cases, "--collect-only", "-m", "not process")
    assert [line for line in printed if "::" in line] == ["tests/test_none.py::test_it"]


def test_a_server_that_is_asked_for_by_name_is_not_started_in_a_fast_run(tmp_path: Path) -> None:
    printed = run(tmp_path, {"case": BY_NAME}, "-m", "not live")
    assert any(line.startswith("1 passed, 1 skipped") for line in printed), "\n".join(printed)
