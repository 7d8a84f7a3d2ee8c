"""Every page is true where a machine can tell: links, paths, commands, pipeline files, terms."""

import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

import penstock
from penstock.cli import _COMMANDS, main
from penstock.config import parse_pipeline
from penstock.model import version
from penstock.ops import health
from tests.docs.pages import (
    DOCS,
    INSTALL,
    INSTALLED,
    ROOT,
    SITE,
    blocks,
    commands,
    linked,
    pages,
)  # fmt: skip

PAGES = pages()
INDEX = (DOCS / "README.md").read_text()
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
VARIABLES = {
    "PG_URL": "postgresql://h/db",
    "TARGET_URL": "postgresql://h/target",
    "EU_URL": "postgresql://h/eu",
    "US_URL": "postgresql://h/us",
    "MONGO_URL": "mongodb://h",
    "COSMOS_KEY": "a2V5",
    "NATS_URL": "nats://h",
    "POSITIONS_URL": "postgresql://h/penstock",
    "PENSTOCK_PASSWORD": "p",
}


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in headings}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        found = linked(page, path)
        if found is None:
            continue
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_what_is_installed_can_be_had(page: Path) -> None:
    named = {name for _, name, _ in INSTALL.findall(page.read_text())}
    assert named <= {INSTALLED} or page.name in ("errors.md", "CHANGELOG.md")


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_module_that_is_named_exists(page: Path) -> None:
    named = re.findall(
        r"`(?:penstock/)?((?:[a-z_]+/)+(?:[a-z_0-9]+\.(?:py|c|h))?)`", page.read_text()
    )
    ours = {each.name for each in (ROOT / "penstock").iterdir() if each.is_dir()}
    missing = [
        path
        for path in named
        if path.split("/")[0] in ours and not (ROOT / "penstock" / path).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("page", [each for each in PAGES if DOCS in each.parents], ids=str)
def test_no_cell_and_no_paragraph_is_long(page: Path) -> None:
    """60 words in a cell of a table, 120 in a paragraph or an item of a list."""
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    paragraph: list[str] = []
    for line in (*text.splitlines(), ""):
        words = line.split()
        if words and words[0].startswith("|"):
            cells = line.strip().strip("|").split(" | ")
            assert [each for each in cells if len(each.split()) > 60] == []
        if not words or (re.match(r"[-*#|]|\d+\.", words[0]) and not words[0].startswith("**")):
            assert len(paragraph) <= 120, " ".join(paragraph)
            paragraph = []
        if words and words[0][0] != "|":
            paragraph += words


def test_the_readme_is_short_and_its_links_work_anywhere() -> None:
    """The package index shows it, too."""
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 100
    prose = re.sub(r"^```.*?^```|^\|.*?$|\]\(.*?\)", "", text, flags=re.M | re.DOTALL)
    assert len(prose.split()) <= 450
    assert [each for each in re.findall(r"\]\(([^)]+)\)", text) if "://" not in each] == []


def test_every_public_name_has_its_docstring_on_the_page_of_classes() -> None:
    named = re.findall(r"^::: penstock\.(\w+)$", (DOCS / "reference/api.md").read_text(), re.M)
    assert named == [name for name in penstock.__all__ if name != "__version__"]


def files(nav: object) -> Iterator[str]:
    """The pages of a navigation, which has groups in groups."""
    if isinstance(nav, str):
        yield nav
        return
    for part in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from files(part)


def test_every_page_is_in_the_navigation_in_the_order_of_the_index() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert list(files(site["nav"])) == [
        "README.md",
        *re.findall(r"^\| .*?\((.+?)\) \|", INDEX, re.MULTILINE),
    ]
    assert site["site_url"] == f"{SITE}/" == f"{version.DOCS}/"


def test_every_suite_that_holds_a_promise_exists() -> None:
    text = (ROOT / "tests" / "README.md").read_text()
    named = re.findall(r"`([a-z_/]+(?:\.py|/))`", text)
    folders = [ROOT / "tests", ROOT / "tests/consumer/mirror"]
    assert [one for one in named if not any((each / one).exists() for each in folders)] == []
    assert len(named) > 40


def test_every_decision_is_where_its_page_says_and_is_held_by_a_test() -> None:
    lines = (DOCS / "explanation" / "decisions.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.split("|")[2:4]] for line in lines if line[:2] == "| "]
    found = [
        (root / file, name)
        for row in rows
        for root, cell in zip((ROOT / "penstock", ROOT), row, strict=True)
        for file, name in re.findall(r"`([\w/]+\.py)`(?:: `(\w+)`)?", cell)
    ]
    assert len(found) > 50
    missing = [
        f"{file}: {name}"
        for file, name in found
        if not file.exists()
        or (name and not re.search(rf"(?m)^ *(def|class) {name}\b", file.read_text()))
    ]
    assert missing == []


def test_every_page_is_in_the_index() -> None:
    others = [page.relative_to(DOCS) for page in DOCS.rglob("*.md") if page.name != "README.md"]
    assert [str(page) for page in others if f"({page})" not in INDEX] == []


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_pipeline_file_is_one(page: Path) -> None:
    for block in blocks(page.read_text(), "yaml"):
        if "backends:" in block and "sink:" in block:
            parse_pipeline(block, environment=VARIABLES)


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_block_of_code_can_be_read(page: Path) -> None:
    """Those of YAML, JSON, TOML, Python and shell."""
    text = page.read_text()
    for block in blocks(text, "yaml"):
        assert list(yaml.safe_load_all(block))
    for block in blocks(text, "json"):
        json.loads(block)
    for block in blocks(text, "toml"):
        tomllib.loads(block)
    for block in blocks(text, "python"):
        compile(block, page.name, "exec")
    for kind in ("", "sh", "bash"):
        for block in blocks(text, kind):
            subprocess.run(["bash", "-n"], input=block, text=True, check=True)


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_command_can_be_called_so(page: Path) -> None:
    for line in commands(page.read_text()):
        name, *arguments = shlex.split(line)[1:]
        command = main.get_command(click.Context(main), name)
        while isinstance(command, click.Group):
            command = command.commands[arguments.pop(0)]
        options = {
            each for param in command.params for each in (*param.opts, *param.secondary_opts)
        }
        unknown = [
            each
            for each in arguments
            if each.startswith("--") and each.partition("=")[0] not in options
        ]
        assert unknown == [], line


def test_every_remedy_names_a_command_and_a_page_that_exist() -> None:
    for remedy in (each for each in vars(health).values() if isinstance(each, health.Remedy)):
        for name in re.findall(r"penstock ([a-z-]+)", remedy.do):
            assert name in _COMMANDS, remedy.do
        path, _, anchor = remedy.see.partition("#")
        page = ROOT / "docs" / f"{path.rstrip('/')}.md"
        assert not anchor or anchor in anchors(page), remedy.see
        assert page.exists(), remedy.see


def test_every_term_has_one_definition() -> None:
    terms = re.findall(
        r"^\| ([^|`*-][^|]*?) \| ", (DOCS / "reference" / "terms.md").read_text(), re.M
    )
    terms = [term for term in terms if term != "term"]
    assert len(terms) > 50
    assert len(terms) == len(set(terms))


@pytest.mark.slow
def test_every_class_among_the_terms_exists() -> None:
    named = set(
        re.findall(
            r"`([A-Z][A-Za-z]+)(?:\.\w+)?`(?: \||, )", (DOCS / "reference" / "terms.md").read_text()
        )
    )
    source = "\n".join(file.read_text() for file in (ROOT / "penstock").rglob("*.py"))
    assert [
        name for name in sorted(named) if not re.search(rf"\b(class {name}\b|{name} = )", source)
    ] == []
