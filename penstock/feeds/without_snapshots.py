"""The gap policy of a feed that takes no snapshots by itself."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator


def _refuse(value: Any) -> Any:
    if value == "resnapshot":
        raise ValueError(
            "`resnapshot` needs snapshots that are taken by themselves, which is not supported yet;"
            " write `fail`, or `continue` and load the data anew (tables of PostgreSQL: with"
            " `penstock snapshot`)"
        )
    return value


PolicyWithoutSnapshots = Annotated[Literal["fail", "continue"], BeforeValidator(_refuse)]
