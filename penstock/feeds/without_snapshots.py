"""The gap policy of a feed that has no snapshots."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator


def _refuse(value: Any) -> Any:
    if value == "resnapshot":
        raise ValueError(
            "`resnapshot` needs snapshots, which this source does not have; write `fail`, or"
            " `continue` and load the data anew"
        )
    return value


PolicyWithoutSnapshots = Annotated[Literal["fail", "continue"], BeforeValidator(_refuse)]
