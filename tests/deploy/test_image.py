"""The image's file has no lint, and copies files that are there."""

import shlex
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT

FILE = ROOT / "deploy" / "Dockerfile"


def test_the_file_has_no_lint() -> None:
    subprocess.run([Path(sys.executable).with_name("hadolint"), FILE], check=True)


def test_every_file_that_is_copied_is_there() -> None:
    copied = [
        shlex.split(line)[1:-1]
        for line in FILE.read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
    ]
    assert copied
    assert [name for names in copied for name in names if not (ROOT / name).exists()] == []
