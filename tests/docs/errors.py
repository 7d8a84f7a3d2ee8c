"""docs/reference/errors.md, made from what `penstock explain` says:
python -m tests.docs.errors"""

from pathlib import Path

from penstock.cli.explain import Code, by_part
from tests.docs.pages import DOCS

PAGE = DOCS / "reference" / "errors.md"
HEAD = """\
# Errors and findings

Each error has a code, which stays the same while its words may change: in brackets at the end of
the text in logs, in `/status` and in what the library raises (`error.code`), as `code` in
`penstock check --json`, and in what a command prints. `penstock explain CODE` shows what is here in
a terminal, without a network.

The first part of a code names the part of penstock, the rest what happened. A code of a general
kind, such as `nats.unavailable`, is that of all errors of its kind that have none of their own.
What `penstock check` warns of, or calls an error, has a code as well.

Each code has its messages, with the remedy in brackets; `…` stands for what differs.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for part, codes in by_part().items():
        parts.append(f"## {part}\n")
        parts += [_section(each) for each in codes]
    return "\n".join(parts).rstrip() + "\n"


def _section(code: Code) -> str:
    cause, remedy = code.cause
    lines = [f"### {code.code}\n", f"{code.meaning}{f' {cause}' if cause else ''}\n"]
    if code.code.startswith("gap."):
        lines += ["See [lost history](operations.md#lost-history).\n"]
    if remedy:
        lines += [f"**Remedy:** {remedy}\n"]
    if code.texts:
        lines += ["\n".join(f"- `{each}`" for each in code.texts) + "\n"]
    return "\n".join(lines)


if __name__ == "__main__":
    Path(PAGE).write_text(page())
