"""`penstock explain`: what a code of an error or a finding means, without a network. The page of
errors is made from the same."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType

import click

from penstock.cli.causes import CAUSES
from penstock.cli.options import json_list, print_json
from penstock.model.errors import SettingsError
from penstock.model.version import DOCS

KINDS = {
    "SettingsError": "You must change something; penstock does not retry.",
    "Unavailable": "penstock retries by itself.",
    "PositionLost": "Changes were lost; `on_gap` decides.",
    "Malformed": "The data does not follow its protocol.",
    "Rejected": "A retry cannot help; if a change is refused, `on_error` decides.",
    "LeaseLost": "Another instance has the lease now; the old owner stops.",
    "RefusedEdit": "The ops server refuses the edit of the map.",
}
KINDS |= {
    "warning": "`penstock check` warns; the pipeline runs.",
    "error": "`penstock check` reports an error: the pipeline could not run, or could lose data.",
    "…": "`penstock check` reports an error or a warning, which depends on the file.",
}
KINDS |= dict.fromkeys(
    ("InvalidPosition", "InvalidStream", "RowsChanged", "OtherSource", "OtherWriters"),
    KINDS["SettingsError"],
)
KINDS |= dict.fromkeys(("RecordsExpired", "ShardIteratorExpired"), KINDS["PositionLost"])
_GAP = "gap."

Row = Mapping[str, ast.expr]


@dataclass(frozen=True, slots=True)
class Code:
    """`texts`: its messages, each with its remedy in brackets, as the code has them."""

    code: str
    meaning: str
    texts: dict[str, None] = field(default_factory=dict)

    @property
    def cause(self) -> tuple[str, str]:
        """What usually brings it about, and what helps; empty where the messages say all."""
        return CAUSES.get(self.code, ("", ""))


@click.command("explain")
@click.argument("code", required=False)
@json_list
def command(*, code: str | None, as_json: bool) -> None:
    """Explain CODE, such as postgres.slot-missing: its meaning, its usual cause, and the remedy.
    Without CODE, or with its first part alone, list codes."""
    known = codes()
    part = (code or "").rstrip(".")
    chosen = [known[part]] if part in known else [
        each for name, each in known.items() if not part or name.partition(".")[0] == part
    ]  # fmt: skip
    if not chosen:
        near = get_close_matches(part, known, n=3, cutoff=0.4)
        raise SettingsError(
            f"there is no code {code}", "cli.no-code",
            hint=f"did you mean {', '.join(near)}?" if near else "`penstock explain` lists them",
        )  # fmt: skip
    if as_json:
        print_json([
            {**asdict(each), "texts": list(each.texts), "cause": each.cause[0],
             "remedy": each.cause[1]} for each in chosen
        ])  # fmt: skip
    elif part not in known:
        for each in chosen:
            click.echo(f"{each.code:36} {each.cause[0] or each.meaning}")
    else:
        _print(chosen[0])


def _print(found: Code) -> None:
    cause, remedy = found.cause
    click.secho(found.code, bold=True)
    click.echo(found.meaning)
    for title, text in (("usually", cause), ("remedy", remedy)):
        if text:
            click.echo(f"\n{title}: {text}")
    if found.texts:
        click.echo("\nits messages (… stands for what differs):")
    for text in found.texts:
        click.echo(f"  {text}")
    click.echo(f"\n{DOCS}/reference/errors/#{found.code.replace('.', '')}")


def codes() -> dict[str, Code]:
    """All, by code."""
    found: dict[str, Code] = {}
    for code, kind, message, hint in raised():
        one = found.setdefault(code, Code(code, KINDS[kind]))
        if re.search("[a-z]", message + hint):
            line = " ".join(f"{message}{f' ({hint})' if hint else ''}".split())
            one.texts[re.sub(r"…+", "…", line).replace("`", "'")] = None
    for code in CAUSES:
        if code.startswith(_GAP):
            found[code] = Code(code, KINDS["PositionLost"])
    return dict(sorted(found.items()))


def slug(kind: str) -> str:
    """Of the name of a class."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind).lower().removesuffix("-error")


def text(node: ast.expr | None, names: Row = MappingProxyType({})) -> str:
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
    package = Path(__file__).parents[1]
    for file in sorted(package.rglob("*.py")):
        folders = [*file.relative_to(package).with_suffix("").parts, ""]
        part = folders[folders[0] in ("feeds", "sinks") and len(folders) > 3]
        names: dict[str, ast.expr] = {}
        loops: list[tuple[int, list[Row]]] = []  # of tables: their last line, and their rows
        for node in sorted(ast.walk(ast.parse(file.read_text("utf-8"))), key=_line):
            if isinstance(node, ast.FunctionDef):  # of names, only constants outlast a function
                names = {name: value for name, value in names.items() if name.isupper()}
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                names[node.targets[0].id] = node.value
            elif isinstance(node, ast.For):
                loops.append((node.end_lineno or 0, _rows(node, names)))
            if isinstance(node, ast.Call) and (called := made_by(node)):
                inner = [rows for last, rows in loops if node.lineno <= last]
                for row in inner[-1] if inner else [{}]:
                    yield from _made(node, called, part, {**names, **row})


def _rows(loop: ast.For, names: Row) -> list[Row]:
    """What a loop over a constant table gives to its names, row by row; one row of names that are
    not constant for another loop."""
    targets = [each.id for each in ast.walk(loop.target) if isinstance(each, ast.Name)]
    table = names.get(loop.iter.id) if isinstance(loop.iter, ast.Name) else None
    unknown: ast.expr = ast.Name("?")
    if isinstance(table, ast.Tuple) and isinstance(loop.target, ast.Tuple):
        cells = [each.elts for each in table.elts if isinstance(each, ast.Tuple)]
        return [dict(zip(targets, each, strict=False)) for each in cells]
    return [dict.fromkeys(targets, unknown)]


def _made(
    node: ast.Call, called: list[str], part: str, names: Row
) -> Iterator[tuple[str, str, str, str]]:
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


def by_part() -> Mapping[str, list[Code]]:
    """Codes by their first part."""
    found: defaultdict[str, list[Code]] = defaultdict(list)
    for each in codes().values():
        found[each.code.partition(".")[0]].append(each)
    return found
