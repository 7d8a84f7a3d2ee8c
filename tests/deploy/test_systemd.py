"""The unit: systemd takes every line of it, and finds it closed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.programs import program
from tests.docs.pages import ROOT

UNIT = ROOT / "deploy" / "systemd" / "penstock@.service"
MOST = 3.0  # of the exposure that systemd counts


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with the penstock that is installed here."""
    program("systemd-analyze", "systemd")
    file = tmp_path / UNIT.name
    file.write_text(UNIT.read_text().replace("/opt/penstock", sys.prefix))
    return file


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_systemd_takes_every_line(unit: Path) -> None:
    done = analyze("verify", unit)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    unit.write_text(UNIT.read_text().replace("ProtectClock", "ProtectClocks"))
    assert "Unknown key 'ProtectClocks'" in analyze("verify", unit).stderr


def test_it_is_closed(unit: Path) -> None:
    done = analyze("security", "--offline=yes", f"--threshold={MOST * 10:.0f}", unit)
    assert done.returncode == 0, done.stdout
