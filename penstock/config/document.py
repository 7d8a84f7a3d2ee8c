"""YAML text -> plain data that knows the line of every value, with `${NAME}` filled in.

Variables are filled in after parsing, so a value can't inject YAML. Their values are remembered
as secrets: no message repeats one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from penstock.model.problems import Path, Problem

_VARIABLE = re.compile(r"\$\$|\$\{([^}]*)\}?")
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
# A password inside a URL, and keys that hold one.
_USERINFO = re.compile(r"://[^/@\s:]*:([^@\s]+)@")
_SECRET_KEY = re.compile(r"pass(word)?|secret|token|seed|nkey|credential|connection", re.IGNORECASE)


@dataclass(slots=True, kw_only=True)
class Document:
    """What was read: `data`, the line of each path (from 1), mistakes so far, and secrets."""

    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    secrets: set[str] = field(default_factory=set)

    def line(self, path: Path) -> int | None:
        """The line of the nearest place at or above `path`."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)


class _Loader(yaml.SafeLoader):
    """SafeLoader without dates: `2026-01-01` stays the text that was written."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag != "tag:yaml.org,2002:timestamp"]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse(text: str, environment: Mapping[str, str]) -> Document:
    """Reads one YAML document. Mistakes, also of syntax, are in `.problems`; raises nothing."""
    document = Document()
    loader = _Loader(text)
    try:
        if (node := loader.get_single_node()) is not None:
            document.data = _Reader(loader, document, environment).value(node, ())
    except yaml.YAMLError as error:
        if (mark := getattr(error, "problem_mark", None)) is not None:
            document.lines[()] = mark.line + 1
        what = getattr(error, "problem", None) or "is not YAML"
        document.problems.append(Problem(path=(), text=f"not valid YAML: {what}"))
    return document


class _Reader:
    def __init__(self, loader: _Loader, document: Document, environment: Mapping[str, str]) -> None:
        self.loader, self.document, self.environment = loader, document, environment
        self.open: set[int] = set()

    def value(self, node: Node, path: Path) -> Any:
        self.document.lines[path] = node.start_mark.line + 1
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        if id(node) in self.open:
            self._problem(path, "an alias must not contain itself")
            return None
        self.open.add(id(node))
        try:
            if isinstance(node, SequenceNode):
                return [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
            assert isinstance(node, MappingNode)
            return self._map(node, path)
        finally:
            self.open.discard(id(node))

    def _map(self, node: MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        written = [key.value for key, _ in node.value if isinstance(key, ScalarNode)]
        for key in sorted({key for key in written if written.count(key) > 1}):
            self._problem((*path, key), "is written twice")
        self.loader.flatten_mapping(node)
        for key, item in node.value:
            if not isinstance(key, ScalarNode):
                self._problem(path, "keys must be text")
                continue
            place = (*path, str(key.value))
            found[key.value] = self.value(item, place)
            self.document.lines[place] = key.start_mark.line + 1
        return found

    def _scalar(self, node: ScalarNode, path: Path) -> Any:
        value = self.loader.construct_object(node)
        if isinstance(value, str):
            value = _VARIABLE.sub(lambda match: self._fill(match, path), value)
            self.document.secrets.update(_USERINFO.findall(value))
            if path and _SECRET_KEY.search(str(path[-1])):
                self.document.secrets.add(value)
        return value

    def _fill(self, match: re.Match[str], path: Path) -> str:
        if match[0] == "$$":
            return "$"
        name = _NAME.fullmatch(match[1]) if match[0].endswith("}") else None
        if name is None:
            self._problem(path, "a variable is written ${NAME} or ${NAME:-default}")
            return ""
        value = self.environment.get(name[1])
        if value is None or (value == "" and name[2] is not None):
            value = name[2]
        elif value:
            self.document.secrets.add(value)
        if value is None:
            self._problem(path, f"the environment variable {name[1]} is not set")
        return value or ""

    def _problem(self, path: Path, text: str) -> None:
        self.document.problems.append(Problem(path=path, text=text))
