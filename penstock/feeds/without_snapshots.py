"""The gap policy of a feed whose snapshots, if it has any, have no position in its log."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator


def _refuse(value: Any) -> Any:
    if value == "resnapshot":
        raise ValueError(
            "`resnapshot` needs snapshots with a position, which this source does not have; write"
            " `fail`, or `continue` and load the data anew"
        )
    return value


PolicyWithoutSnapshots = Annotated[Literal["fail", "continue"], BeforeValidator(_refuse)]
