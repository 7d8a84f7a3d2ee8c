"""Numbers: integers and floats as numbers, numeric as text at its declared scale.

A float that is no number travels as `NaN`, `Infinity` or `-Infinity`, which is also how numeric
spells it: JSON has no word for them.
"""

_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")

# int2, int4, int8, oid: at most 64 bit, so exact in MessagePack and digit by digit in JSON.
integer = int


def floating(raw: bytes) -> float | str:
    """float4 and float8; the server writes the shortest text that reads back the same."""
    value = float(raw)
    if value - value == 0:  # not so for NaN and infinities
        return value
    text = raw.decode()
    if text in _NO_NUMBERS:
        return text
    raise ValueError("a float out of range")


def boolean(raw: bytes) -> bool:
    """`t` or `f`."""
    if raw == b"t":
        return True
    if raw == b"f":
        return False
    raise ValueError("neither t nor f")
