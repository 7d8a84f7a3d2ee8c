"""The kernels' own tests once more, under the address and undefined behaviour sanitizers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.native import build
from tests.wire.cells import examples

ROOT = Path(__file__).parents[2]
TESTS = [
    "tests/wire/pgoutput/test_kernel.py",
    "tests/wire/pgoutput/test_text.py",
    "tests/wire/changestream/test_kernel.py",
    "tests/sinks/messages/test_convert.py",
    "tests/sinks/messages/test_native_batches.py",
    "tests/feeds/postgres/test_framing.py",
    "tests/feeds/postgres/test_walk.py",
    "tests/feeds/postgres/test_rows.py",
    "tests/typed/test_native.py",
]


def runtime() -> str:
    """The sanitizer's library, which has to be there before everything else."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no gcc")
    found = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip("gcc has no address sanitizer")
    return found


@pytest.mark.slow
def test_nothing_is_read_or_written_outside(tmp_path: Path) -> None:
    preload = runtime()
    build.compile_library(tmp_path / "sanitized.so", build.SANITIZE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS],
        cwd=ROOT,
        env={
            **os.environ,
            "PENSTOCK_NATIVE": str(tmp_path / "sanitized.so"),
            "PENSTOCK_EXAMPLES": str(examples(300) / 1000),
            "LD_PRELOAD": preload,
            # Python itself never frees everything; what is freed shall be given back.
            "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=8",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout
