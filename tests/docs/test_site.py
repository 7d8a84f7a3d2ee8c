"""The site builds without a warning, its links lead somewhere, and it loads nothing from others."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.docs.site import llms, problems

pytestmark = pytest.mark.slow


def test_the_site_builds_and_holds_together(tmp_path: Path) -> None:
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    for name in ("docs", "penstock"):
        shutil.copytree(ROOT / name, tmp_path / name)
    built = subprocess.run(
        [Path(sys.executable).with_name("zensical"), "build", "--strict"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert list(problems(tmp_path / "build/site/latest")) == []


def test_a_link_that_leads_nowhere_and_a_foreign_font_are_found(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<link rel="stylesheet" href="https://fonts.example/a.css"><a href="gone/">x</a>'
        '<a href="#no">y</a>'
    )
    assert len(list(problems(tmp_path))) == 3


def test_steps_that_fell_apart_are_found(tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    page.write_text("<h2>Do</h2><ol><li>a</li></ol><pre>b</pre><ol><li>c</li></ol>")
    assert [line.partition(":")[0] for line in problems(tmp_path)] == ["index.html"]
    page.write_text("<ol><li>a<ul><li>b</li></ul></li></ol><h2>Next</h2><ol><li>c</li></ol>")
    assert list(problems(tmp_path)) == []


def test_the_index_for_language_models_names_every_page() -> None:
    assert llms().count("\n- [") == len(list((ROOT / "docs").rglob("*.md"))) - 1
