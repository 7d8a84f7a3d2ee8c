"""The iterator: any feed, record by record, in plain Python. No Spark, no threads.

Stream > Coordinator > Shard > Buffer, strictly downward. `penstock.stream` is this package and a
function at once: `penstock.stream("memory")` opens an iterator.
"""

import sys
from inspect import Signature, cleandoc, signature
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock.stream.record import ChangeRecord
from penstock.stream.stream import Stream

if TYPE_CHECKING:
    from penstock.stream.opening import stream
else:

    class _Callable(ModuleType):
        def __call__(self, *arguments: Any, **settings: Any) -> Stream:
            from penstock.stream.opening import stream as opened

            return opened(*arguments, **settings)

        @property
        def __signature__(self) -> Signature:
            from penstock.stream.opening import stream as opened

            return signature(opened)

        @property
        def __doc__(self) -> str:
            """What `help` shows of the function."""
            from penstock.stream.opening import stream as opened

            return f"stream{signature(opened)}\n\n{cleandoc(opened.__doc__)}"

    stream = sys.modules[__name__]
    stream.__class__ = _Callable

__all__ = ["ChangeRecord", "Stream", "stream"]
