"""docs/reference/errors.md, made from what `penstock explain` says:
python -m tests.docs.errors"""

from pathlib import Path

from penstock.cli.explain import Code, by_part
from tests.docs.pages import DOCS

PAGE = DOCS / "reference" / "errors.md"
HEAD = """\
# Errors and findings

Each error has a code. The code stays the same while the message may change. It is in brackets at
the end of the message in logs, in `/status`, in a command's output, and in errors that the library
raises (`error.code`); in `penstock check --json` it is `code`. `penstock explain CODE` shows the
text of this page in a terminal, without a network.

The first part of a code names the part of penstock, and the rest the problem. A general code, such
as `nats.unavailable`, is for all errors of its kind without a code of their own. Warnings and
errors of `penstock check` have codes, too.

Below each code are its messages, with the remedy in brackets; `…` stands for the variable part.
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
