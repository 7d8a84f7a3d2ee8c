"""Subjects with wildcards: which ones a pattern stands for."""


def covers(pattern: str, subject: str) -> bool:
    """True when every subject that `subject` (may have wildcards) stands for matches `pattern`."""
    wide, narrow = pattern.split("."), subject.split(".")
    for index, token in enumerate(wide):
        if token == ">":  # noqa: S105 - a subject's token
            return len(narrow) > index
        if index >= len(narrow) or narrow[index] == ">":
            return False
        if token not in ("*", narrow[index]):
            return False
    return len(wide) == len(narrow)


def overlaps(one: str, other: str) -> bool:
    """True when some subject matches both patterns."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(left) == len(right)
