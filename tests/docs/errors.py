"""docs/reference/errors.md, made from the places that raise errors or make findings:
python -m tests.docs.errors"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from tests.docs.pages import DOCS, ROOT

PAGE = DOCS / "reference" / "errors.md"
HEAD = """\
# Errors and findings

Each error has a code, which stays the same while its words may change: in brackets at the end of
the text in logs, in `/status` and in what the library raises (`error.code`), as `code` in
`penstock check --json`, and in the link that a command prints. The first part names the part of
penstock, the rest what happened; a code of a general kind (`nats.unavailable`) is of every error of
its kind without one of its own.

What `penstock check` warns of, or calls an error, has a code as well, in brackets after its text.

This page is made from the code: `python -m tests.docs.errors`. An ellipsis stands for what differs.
"""
KINDS = {
    "SettingsError": "Something must be changed; penstock does not try again.",
    "Unavailable": "penstock tries again by itself.",
    "PositionLost": "Changes were lost; `on_gap` decides.",
    "Malformed": "What came does not follow its protocol.",
    "Rejected": "The change is refused for good; `on_error` decides.",
    "LeaseLost": "Another owner has it now; the old one stops.",
    "RefusedEdit": "The edit of the map is refused.",
}
KINDS |= {
    "warning": "`penstock check` warns of it; the pipeline runs.",
    "error": "`penstock check` finds it: the pipeline could not run, or could lose data.",
    "…": "`penstock check` finds it: an error or a warning, by what the file asks for.",
}
KINDS |= dict.fromkeys(("InvalidPosition", "InvalidStream", "RowsChanged"), KINDS["SettingsError"])
KINDS |= dict.fromkeys(("RecordsExpired", "ShardIteratorExpired"), KINDS["PositionLost"])


def slug(kind: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind).lower().removesuffix("-error")


def text(node: ast.expr | None, names: Mapping[str, ast.expr] = MappingProxyType({})) -> str:
    """The words of a literal, or of the name of one; an ellipsis for all that is not constant."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text(each) for each in node.values)
    if isinstance(node, ast.BinOp):
        return text(node.left, names) + text(node.right, names)
    if isinstance(node, ast.Name) and node.id in names:
        return text(names[node.id])
    return "…" if node is not None else ""


def raised() -> Iterator[tuple[str, str, str, str]]:
    """(code, class, message, hint) of each place that makes an error or a finding. An error that is
    told again has the other's code, and is listed under the general one of its place."""
    for file in sorted((ROOT / "penstock").rglob("*.py")):
        folders = [*file.relative_to(ROOT / "penstock").with_suffix("").parts, ""]
        part = folders[folders[0] in ("feeds", "sinks") and len(folders) > 3]
        nodes = sorted(ast.walk(ast.parse(file.read_text())), key=_line)
        names: dict[str, ast.expr] = {}
        for node in nodes:
            if isinstance(node, ast.FunctionDef):  # of names, only constants outlast a function
                names = {name: value for name, value in names.items() if name.isupper()}
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                names[node.targets[0].id] = node.value
            if not (isinstance(node, ast.Call) and (called := made_by(node))):
                continue
            kind = next((each for each in called if each in KINDS), called[0])
            given = {each.arg: each.value for each in node.keywords}
            code = text(given.get("code"))
            if kind == "finding" and text(node.args[0]) != "ok":
                code = text(given["code"], names)
                _, _, message, remedy, *_ = *(text(each, names) for each in node.args), "", ""
                yield code, text(node.args[0]), message, remedy
            if kind in KINDS and node.args:
                code = text(node.args[1]) if len(node.args) > 1 else code
                code = code if "." in code else f"{code.replace('…', part)}.{slug(kind)}"
                yield code, kind, text(node.args[0], names), text(given.get("hint"), names)


def made_by(call: ast.Call) -> list[str]:
    """The names of what is called: one, or both of `(one if it is so else other)(...)`."""
    func = call.func
    either = [func.body, func.orelse] if isinstance(func, ast.IfExp) else [func]
    return [each.id for each in either if isinstance(each, ast.Name)]


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def page() -> str:
    """The whole page."""
    from tests.docs.test_reference import GAPS

    found: defaultdict[str, dict[str, None]] = defaultdict(dict)
    kinds: dict[str, str] = {}
    for code, kind, message, hint in raised():
        kinds[code] = kind
        if re.search("[a-z]", message + hint):
            line = " ".join(f"{message}{f' ({hint})' if hint else ''}".split())
            found[code][re.sub(r"…+", "…", line).replace("`", "'")] = None
        else:
            found[code]
    for cause in GAPS:
        code = f"gap.{cause.replace('_', '-')}"
        kinds[code] = "PositionLost"
        found[code]["See [lost history](operations.md#lost-history)."] = None
    parts = [HEAD]
    for part in sorted({code.partition(".")[0] for code in found}):
        parts.append(f"## {part}\n")
        for code in sorted(code for code in found if code.partition(".")[0] == part):
            lines = [f"- {each if 'See [' in each else _quoted(each)}" for each in found[code]]
            parts.append("\n".join([f"### {code}\n", f"{KINDS[kinds[code]]}\n", *lines]).rstrip())
            parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def _quoted(line: str) -> str:
    return f"`{line}`"


if __name__ == "__main__":
    Path(PAGE).write_text(page())
