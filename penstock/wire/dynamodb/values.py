"""DynamoDB's typed values: `{"N": "1"}` and the like, as plain values of an image, or as Python's.

| type | JSON image | MessagePack image | Python |
|---|---|---|---|
| S, BOOL, NULL | text, boolean, null | the same | the same |
| N | a number where every reader of JSON holds it exactly, else its digits as text | the same | Decimal |
| B | base64 text | bytes | bytes |
| M, L | object, array | map, array | dict, list |
| SS, NS, BS | array, sorted (NS by value) | the same | set |
"""  # noqa: E501

import re
from binascii import a2b_base64
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Literal

from penstock.model.change import Images
from penstock.model.errors import Malformed

# Attribute name -> typed value.
Item = dict[str, dict[str, Any]]

_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_EXACT = 2**53  # below it, every reader of JSON has an integer's digits
_SHORT = 15  # digits that every double holds


def image_number(digits: str) -> int | float | str:
    """A number as an image has it; raises ValueError for what is no number."""
    if digits.isdecimal() and digits.isascii() and len(digits) <= _SHORT:
        return int(digits)
    if not _NUMBER.fullmatch(digits):
        raise ValueError("not a number")
    if digits.removeprefix("-").isdecimal():
        value = int(digits)
        return value if abs(value) < _EXACT else digits
    found = float(digits)
    if abs(found) >= _EXACT:
        return digits
    if len(digits) <= _SHORT and "e" not in digits.lower():
        return found
    return found if Decimal(repr(found)) == Decimal(digits) else digits


class AttributeValues:
    """Reads typed values, by a column of the table. Raises Malformed, which never quotes one."""

    def __init__(self, form: Images | Literal["python"]) -> None:
        number = _decimal if form == "python" else image_number
        binary = _base64 if form == "json" else _bytes
        collection: Any = set if form == "python" else list
        self._readers: dict[str, Callable[[Any], Any]] = {
            "S": _text,
            "N": number,
            "B": binary,
            "BOOL": _boolean,
            "NULL": lambda _: None,
            "M": self.item,
            "L": self._list,
            "SS": lambda texts: collection(sorted(map(_text, texts))),
            "NS": lambda texts: collection([number(each) for each in sorted(texts, key=Decimal)]),
            "BS": lambda texts: collection(
                [binary(each) for each in sorted(texts, key=a2b_base64)]
            ),
        }

    def item(self, attributes: Item) -> dict[str, Any]:
        """An item, or a value of type M."""
        readers, found = self._readers, {}
        try:
            for name, value in attributes.items():
                ((tag, inner),) = value.items()
                found[name] = readers[tag](inner)
        except Malformed:
            raise
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise Malformed("an attribute is not a typed value of DynamoDB", "wire") from error
        return found

    def _list(self, values: list[dict[str, Any]]) -> list[Any]:
        found = []
        for value in values:
            ((tag, inner),) = value.items()
            found.append(self._readers[tag](inner))
        return found


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("not a text")
    return value


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError("not a boolean")
    return value


def _decimal(digits: str) -> Decimal:
    if not _NUMBER.fullmatch(digits):
        raise ValueError("not a number")
    return Decimal(digits)


def _bytes(text: str) -> bytes:
    return a2b_base64(text, strict_mode=True)


def _base64(text: str) -> str:
    _bytes(text)
    return text
