"""Programs of Debian that the tests of deploy/ run: where they are, or a skip with the reason."""

import shutil
import sys
from pathlib import Path

import pytest


def prometheus_program(name: str) -> str:
    """`prometheus` or `promtool`: on the PATH, or where scripts/test unpacks Debian's."""
    unpacked = Path(sys.prefix, "prometheus", "usr", "bin", name)
    found = shutil.which(name) or (str(unpacked) if unpacked.exists() else None)
    return found or pytest.skip(f"{name} is not installed: apt-get install prometheus")


def program(name: str, package: str) -> str:
    """A program on the PATH, of this package of Debian's."""
    return shutil.which(name) or pytest.skip(f"{name} is not installed: apt-get install {package}")
