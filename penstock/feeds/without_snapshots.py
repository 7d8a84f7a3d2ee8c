"""The gap policy of a feed that takes no snapshots."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator


def _refuse(value: Any) -> Any:
    if value == "resnapshot":
        raise ValueError(
            "`resnapshot` needs snapshots, which penstock does not take of this source yet; write"
            " `fail`, or `continue` and load the data anew yourself"
        )
    return value


PolicyWithoutSnapshots = Annotated[Literal["fail", "continue"], BeforeValidator(_refuse)]
