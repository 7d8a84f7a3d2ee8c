"""Templates of subjects, and the wildcards of streams and shards."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from penstock.model.errors import SettingsError
from penstock.nats.subjects import FORBIDDEN, escape

FIELDS = (
    "backend", "tenant", "namespace", "collection", "operation", "source_partition", "partition",
)  # fmt: skip
# Which a kind of message does not determine: the source's partition, and the hash partition.
_JOINTS = re.compile(r"\{(source_partition|partition)\}")
# What distinguishes the writers of a stream: a shard fixes these and leaves the rest open.
_OWNERS = frozenset({"backend", "source_partition"})

_FIELD = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Template:
    """A valid subject template, such as `cdc.{collection}.{operation}`."""

    text: str

    @property
    def fields(self) -> frozenset[str]:
        return frozenset(_FIELD.findall(self.text))

    @property
    def wildcard(self) -> str:
        """The narrowest subject that covers everything this template can give."""
        return self._filled({})

    @property
    def segments(self) -> "tuple[Template, ...]":
        """What is before, between and after the `joints`."""
        return tuple(Template(text) for text in _JOINTS.split(self.text)[::2])

    @property
    def joints(self) -> tuple[str, ...]:
        """The fields, in their order, that a kind of message does not determine:
        `source_partition` and `partition`."""
        return tuple(_JOINTS.findall(self.text))

    @property
    def fixed(self) -> set[str]:
        """Which of `backend` and `source_partition` are in tokens without other fields: only there
        a wildcard can fix them."""
        tokens = [set(_FIELD.findall(token)) for token in self.text.split(".")]
        return {name for names in tokens if names <= _OWNERS for name in names}

    def shard(self, backend: str, partition: str) -> str:
        """The wildcard that covers one partition's changes, as narrow as the template allows."""
        return self._filled({"backend": backend, "source_partition": partition})

    def of_backend(self, backend: str) -> str:
        """The wildcard that covers a backend's changes, as narrow as the template allows."""
        return self._filled({"backend": backend})

    def render(self, values: Mapping[str, str | None]) -> str:
        """The subject of a change; `operation` in lower case."""
        cased = {**values, "operation": (values.get("operation") or "").lower()}
        return _FIELD.sub(lambda m: escape(cased.get(m[1])), self.text)

    def _filled(self, known: Mapping[str, str]) -> str:
        tokens = []
        for token in self.text.split("."):
            whole = set(_FIELD.findall(token)) <= known.keys()
            tokens.append(_FIELD.sub(lambda m: escape(known[m[1]]), token) if whole else "*")
        return ".".join(tokens)


def parse_template(text: str) -> Template:
    """Checks a template; raises SettingsError that names the unknown field and the known ones."""
    known = ", ".join(FIELDS)
    for name in _FIELD.findall(text):
        if name not in FIELDS:
            near = get_close_matches(name, FIELDS, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise SettingsError(
                f"subject {text!r} uses the unknown field {{{name}}}",
                "sinks",
                hint=f"{hint}known: {known}",
            )
    literal = _FIELD.sub("x", text)
    if re.search(r"[{}]", literal):
        raise SettingsError(
            f"subject {text!r} has an unmatched brace", "sinks", hint=f"fields: {known}"
        )
    if any(not token for token in literal.split(".")):
        raise SettingsError(
            f"subject {text!r} has an empty token", "sinks", hint="write cdc.{collection}"
        )
    if FORBIDDEN.search(literal.replace(".", "").replace("%", "")):
        raise SettingsError(
            f"subject {text!r} has white space or a wildcard",
            "sinks",
            hint="only fields in braces vary: cdc.{collection}.{operation}",
        )
    if literal.startswith("$"):
        raise SettingsError(
            f"subject {text!r} starts with $", "sinks", hint="that belongs to the server"
        )
    return Template(text)
