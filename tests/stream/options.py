"""penstock/stream/options.py, made from the settings of feeds: python -m tests.stream.options"""

import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, SecretStr
from pydantic.fields import FieldInfo

from penstock.process.plugins import plugin
from penstock.stream import options

KINDS = ("cosmos", "dynamodb", "memory", "mongodb", "postgres")
FILE = Path(str(options.__file__))
HEAD = '''\
"""The settings of each feed as keywords of `penstock.stream`, for type checkers. Made from the
settings: python -m tests.stream.options
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from pydantic import SecretStr
'''


def text(field: FieldInfo) -> str:
    """What a caller may give for a setting."""
    return _text(field.annotation, field.metadata)


def _text(kind: Any, metadata: list[Any]) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if hasattr(kind, "__metadata__"):
        return _text(kind.__origin__, list(kind.__metadata__))
    if origin in (Union, types.UnionType):
        return " | ".join(_text(each, metadata) for each in arguments)
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]".replace("'", '"')
    if origin is tuple:
        return f"Sequence[{_text(arguments[0], [])}]"
    if origin is dict or (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return "Mapping[str, Any]"
    if kind is types.NoneType:
        return "None"
    also = {SecretStr: "str | SecretStr", Path: "str | Path"}
    if kind in also:
        return also[kind]
    if kind is str:
        return "str"
    is_parsed = any(isinstance(each, BeforeValidator) for each in metadata)
    return f"{kind.__name__} | str" if is_parsed else str(kind.__name__)


def made() -> str:
    parts = [HEAD]
    for kind in KINDS:
        fields = plugin("feeds", kind).settings.model_fields
        lines = [f"    {field}: {text(info)}" for field, info in fields.items()
                 if field not in ("type", "table")]  # fmt: skip
        head = f"\n\nclass {kind.capitalize()}Options(TypedDict, total=False):"
        parts.append("\n".join([head, *lines, ""]))
    return "".join(parts)


if __name__ == "__main__":
    FILE.write_text(made())
