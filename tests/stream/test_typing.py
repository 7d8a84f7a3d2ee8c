"""What type checkers and `help` know of the iterator."""

import inspect
import pydoc
import subprocess
import sys
from pathlib import Path

import penstock
from tests.stream.options import FILE, made

# A line of a user's program -> what mypy --strict says of it; nothing of the others.
PROGRAM = {
    "from dataclasses import dataclass": "",
    "from datetime import datetime": "",
    "from typing import Any": "",
    "import penstock": "",
    "@dataclass\nclass User:\n    id: int": "",
    'plain = penstock.stream("memory", at="latest", changes=3)': "",
    'users = penstock.stream("mongodb", model=User, database="shop", page_size="1MiB")': "",
    "given: dict[str, Any] = {}": "",
    'more = penstock.stream("postgres", at=plain.token, **given)': "",
    "def first(stream: penstock.Stream) -> penstock.ChangeRecord | None:\n"
    "    return next(stream)": "",
    "def when(record: penstock.ChangeRecord[User]) -> datetime:\n"
    '    return record["meta"]["created_at"]': "",
    "async def new() -> User | None:\n"
    "    async for record in users:\n"
    '        return record["new"]\n'
    "    return None": "",
    "for record in users.follow():\n"
    '    reveal_type(record["new"])': 'Revealed type is "program.User | None"',
    "for other in plain.follow():\n"
    '    reveal_type(other["new"])': 'Revealed type is "dict[str, Any] | None"',
    'record["meta"]["event"]["kind"]': 'has no key "kind"',
    'penstock.stream("postgres", conection="x")': 'Unexpected keyword argument "conection"',
    'penstock.stream("mongodb", collections=3)': "No overload variant",
    'penstock.stream("mangodb")': "No overload variant",
}  # fmt: skip


def test_a_users_program_is_checked_strictly(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("\n".join(PROGRAM))
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={tmp_path}", program.name],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"MYPYPATH": str(Path(penstock.__path__[0]).parent)},
    )  # fmt: skip
    told = [line for line in found.stdout.splitlines() if line.startswith("program.py:")]
    line, expected = 0, {}
    for text, says in PROGRAM.items():
        line += len(text.splitlines())
        if says:
            expected[line] = says
    assert {int(each.split(":")[1]) for each in told} == {*expected}, found.stdout + found.stderr
    for number, says in expected.items():
        assert any(each.startswith(f"program.py:{number}:") and says in each for each in told), says


def test_the_keywords_of_each_kind_are_its_settings() -> None:
    assert FILE.read_text() == made(), "python -m tests.stream.options"


def test_help_and_signatures_are_those_of_the_function() -> None:
    shown = pydoc.plain(pydoc.render_doc(penstock.stream))
    assert "stream(kind: " in shown
    assert "Opens an iterator over a feed" in shown
    assert [*inspect.signature(penstock.stream).parameters][:3] == ["kind", "at", "model"]
