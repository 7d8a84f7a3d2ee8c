"""The built site of the documentation: python -m tests.docs.site FOLDER (scripts/docs runs it).

Adds llms.txt, and prints every link or anchor that leads nowhere, everything that a page would load
from another host, and every list of steps that fell apart into lists of one step.
"""

import itertools
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlparse

from tests.docs.pages import DOCS, SITE

_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.numbered: list[int] = []  # of each list of steps, how many; 0: a heading
        self._open: list[int] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag in ("ol", "ul"):
            self._open.append(0)
        if tag == "li" and self._open:
            self._open[-1] += 1
        if re.fullmatch("h[1-6]", tag):
            self.numbered.append(0)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        wanted = given.get(_LOADED.get(tag, ""), "")
        if wanted and given.get("rel") not in ("canonical", "next", "prev"):
            self.loaded.append(wanted)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("ol", "ul") and self._open:
            steps = self._open.pop()
            if tag == "ol":
                self.numbered.append(steps)


def problems(site: Path) -> Iterator[str]:
    """What is wrong on the pages, in a line each."""
    found = {file: _Page(file.read_text("utf-8")) for file in sorted(site.rglob("*.html"))}
    for file, page in found.items():
        where = file.relative_to(site)
        base = SITE + "/" + where.as_posix().removesuffix("index.html")
        if (1, 1) in itertools.pairwise(page.numbered):
            yield f"{where}: each step is number 1; what belongs to a step is indented by 4 spaces"
        for loaded in page.loaded:
            if urlparse(loaded).netloc:
                yield f"{where}: loads {loaded}"
            elif where.name != "404.html" and not (file.parent / unquote(loaded)).exists():
                yield f"{where}: {loaded} is missing"
        for link in page.links:
            url = urljoin(base, link)
            path, _, anchor = url.partition("#")
            if not path.startswith(SITE) or where.name == "404.html":
                continue
            target = site / unquote(path.removeprefix(SITE).lstrip("/"))
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                yield f"{where}: {link} leads nowhere"
            elif anchor and target in found and unquote(anchor) not in found[target].ids:
                yield f"{where}: {link} has no such anchor"
    for file in sorted(site.rglob("*.css")):
        for loaded in re.findall(r"url\(['\"]?(https?:[^)]*)\)|@import", file.read_text("utf-8")):
            yield f"{file.relative_to(site)}: loads {loaded}"


def llms() -> str:
    """The index of the documentation for language models (llmstxt.org)."""
    lines = [
        "# penstock\n",
        "> Change data capture in Python on Apache Spark: every committed change of PostgreSQL,"
        " MongoDB, DynamoDB or Cosmos DB, in order, into NATS JetStream, PostgreSQL, a Spark job or"
        " a Python loop. The package on PyPI is penstock-cdc.\n",
    ]
    row = re.compile(r"^(?:\| \[(.+?)\]\((.+?)\.md\) \| (.*) \||## (.+))$", re.MULTILINE)
    for title, page, text, heading in row.findall((DOCS / "README.md").read_text("utf-8")):
        lines += [f"\n## {heading}\n"] if heading else [f"- [{title}]({SITE}/{page}/): {text}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "llms.txt").write_text(llms(), "utf-8")
    wrong = list(problems(folder))
    print("\n".join(wrong))
    sys.exit(bool(wrong))
