"""`scripts/vendor`: what it fetches is compared before anything is changed."""

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UI = ROOT / "penstock" / "ops" / "ui"


@pytest.mark.parametrize("changed", [False, True])
def test_the_library_of_charts_is_fetched_and_compared(tmp_path: Path, *, changed: bool) -> None:
    package, before = tmp_path / "package", UI.joinpath("uplot.js").read_bytes()
    package.joinpath("dist").mkdir(parents=True)
    shutil.copy(UI / "uplot.LICENSE", package / "LICENSE")
    shutil.copy(UI / "uplot.css", package / "dist" / "uPlot.min.css")
    package.joinpath("dist", "uPlot.iife.min.js").write_bytes(before + b" " * changed)
    archive = tmp_path / "uplot" / "-" / "uplot-1.6.32.tgz"
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w:gz") as written:
        written.add(package, "package")
    environment = {**os.environ, "npm_config_registry": tmp_path.as_uri()}
    done = subprocess.run(["scripts/vendor"], cwd=ROOT, env=environment, check=False)
    assert bool(done.returncode) == changed
    assert UI.joinpath("uplot.js").read_bytes() == before
