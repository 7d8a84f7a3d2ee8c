"""What the pages for authors of feeds, sinks and stores test the examples with, run as theirs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.feeds import Feed
from tests.docs.pages import DOCS, blocks


def test_the_page_of_feeds_has_each_member_of_the_contract() -> None:
    text = (DOCS / "how-to" / "write-a-feed.md").read_text()
    members = {name for name in vars(Feed) if not name.startswith("_")}
    there = set(re.findall(r"`(\w+)(?:\([^`]*\))?`", text))
    assert members - there - {"backend"} == set()


@pytest.mark.process
@pytest.mark.parametrize("page", ["write-a-feed", "write-a-sink", "write-a-store"])
def test_the_example_keeps_the_contract_as_the_page_tests_it(page: str, tmp_path: Path) -> None:
    text = (DOCS / "how-to" / f"{page}.md").read_text()
    found = [each for each in blocks(text, "python") if "penstock.testing" in each]
    assert found
    for number, block in enumerate(found):
        (tmp_path / f"test_mine{number}.py").write_text(block)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "--rootdir", tmp_path, tmp_path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(DOCS.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
