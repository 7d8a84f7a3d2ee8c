"""The pages of the documentation, as tests read them."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Where the documentation and the source are read by others.
SITE = "https://penstock-cdc.github.io/penstock/latest"
SOURCE = "https://github.com/penstock-cdc/penstock/blob/main"

# What pages install: `.`, in a clone; or `penstock-cdc`, once it is on the index. The switch is
# `python -m tests.docs.pages NAME`, which writes it here and into every page.
INSTALLED = "."
INSTALL = re.compile(r"(pip install ')([\w.-]+)(\[[\w,-]+\]')")

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    """Every page for users and contributors."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "bench/README.md")]
    return [*top, *sorted(DOCS.rglob("*.md"))]


def section(text: str, heading: str) -> str:
    """The part of a page from this heading to the next of any level."""
    begin = text.index(f"# {heading}\n")
    end = text.find("\n#", begin + 2)
    return text[begin : end if end >= 0 else None]


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of this language ("" for none), without the indentation of their list."""
    return [
        "".join(line.removeprefix(indent) for line in body.splitlines(keepends=True))
        for indent, kind, body in _BLOCK.findall(text)
        if kind == language
    ]


def commands(text: str) -> list[str]:
    """The lines of unnamed and `sh` blocks that run penstock, without comments."""
    lines = [
        line for kind in ("", "sh") for block in blocks(text, kind) for line in block.splitlines()
    ]
    bare = [line.partition("  #")[0].strip() for line in lines]
    return [line for line in bare if line.startswith("penstock ")]


def statements(text: str) -> list[str]:
    """The SQL of a page, statement by statement."""
    return [one for sql in blocks(text, "sql") for one in re.split(r"(?<=;)\n", sql) if one.strip()]


def linked(page: Path, target: str) -> Path | None:
    """The file that a link without its anchor leads to; None for what others have."""
    if target.startswith(SITE):
        name = target.removeprefix(SITE).strip("/")
        return DOCS / (name if "." in name else f"{name or 'README'}.md")
    if target.startswith(SOURCE):
        return ROOT / target.removeprefix(SOURCE).strip("/")
    return None if "://" in target else page.parent / target if target else page


if __name__ == "__main__":
    (name,) = sys.argv[1:]
    for each in pages():
        each.write_text(INSTALL.sub(rf"\g<1>{name}\g<3>", each.read_text()))
    this = Path(__file__)
    this.write_text(this.read_text().replace(f'INSTALLED = "{INSTALLED}"', f'INSTALLED = "{name}"'))
