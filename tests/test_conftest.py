"""A release run never passes by not running; a fast one starts no server."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = {
    "a test": "import pytest\ndef test_it(): pytest.skip('not here')",
    "a mark": "import pytest\n@pytest.mark.skip\ndef test_it(): pass",
    "a fixture": (
        "import pytest\n@pytest.fixture\ndef gone(): pytest.skip('not here')\n"
        "def test_it(gone): pass"
    ),
    "a module": "import pytest\npytest.importorskip('no_such_module')\ndef test_it(): pass",
}


@pytest.mark.parametrize("what", CASES)
@pytest.mark.parametrize("strict", [False, True])
def test_a_skip_is_a_failure_only_in_a_release_run(what: str, strict: bool, tmp_path: Path) -> None:
    conftest = Path(__file__).with_name("conftest.py").read_text()
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_case.py").write_text(CASES[what])
    (tmp_path / "test_other.py").write_text("def test_other(): pass")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path],
        cwd=tmp_path,
        env={**os.environ, "PENSTOCK_TEST_NO_SKIP": "1" if strict else ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode != 0) == strict, done.stdout


@pytest.mark.parametrize(
    ("case", "is_live"),
    [
        ("def test_it(nats): pass", True),
        ("def test_it(database): pass", True),
        ("def test_it(): Nats()", True),
        ("def start(): return Nats()\ndef test_it(): assert start()", True),
        ("def test_it():\n    def start(): return Nats()\n    assert start()", True),
        ("@pytest.fixture\ndef own(): yield Nats()\ndef test_it(own): pass", True),
        ("def test_it(nats: Nats): pass", True),
        ("def test_it(tmp_path): assert Nats", True),
        ("def test_it(tmp_path): pass", False),
    ],
)
def test_who_starts_a_server_is_live(case: str, is_live: bool, tmp_path: Path) -> None:
    conftest = Path(__file__).with_name("conftest.py").read_text()
    (tmp_path / "conftest.py").write_text(conftest)
    head = "import pytest\nfrom penstock.demo.servers import Nats\n"
    (tmp_path / "test_case.py").write_text(head + case)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "not live", tmp_path],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ("1 deselected" in done.stdout) == is_live, done.stdout
