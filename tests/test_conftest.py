"""A release run (PENSTOCK_TEST_NO_SKIP=1) never passes by not running."""

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
