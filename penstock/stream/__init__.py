"""The iterator: any feed, record by record, in plain Python. No Spark, no threads.

Stream > Coordinator > Shard > Buffer, strictly downward. `penstock.stream` is this package and a
function at once: `penstock.stream("memory")` opens an iterator.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock.stream.stream import Stream

if TYPE_CHECKING:
    from penstock.stream.opening import stream
else:

    class _Callable(ModuleType):
        def __call__(self, *arguments: Any, **settings: Any) -> Stream:
            from penstock.stream.opening import stream as opened

            return opened(*arguments, **settings)

    stream = sys.modules[__name__]
    stream.__class__ = _Callable

__all__ = ["Stream", "stream"]
