"""Bodies of messages as zstd frames, each by itself, with its table's dictionary if there is one.

A small body alone has little that repeats: a dictionary, trained on others like it, makes it
several times smaller. A body that does not become smaller stays as it is. Pure.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.nats.compression import Dictionaries, Frames
from penstock.sinks.messages.kinds import MessageKind
from penstock.sinks.rows.columns import BINARY, Column, Numbers, offsets_of, sizes_of

_NOTHING = pa.scalar(b"", BINARY)

_TABLE = "backend", "namespace", "collection"


class Compression:
    """Of the messages of an encoder."""

    def __init__(self, dictionaries: Dictionaries | None = None) -> None:
        self._dictionaries = dictionaries or {}
        self._usual = _Compressor()
        self._compressors: dict[tuple[str | None, ...], _Compressor] = {}

    def of(
        self, headers: Column, bodies: Column, numbers: Numbers, kinds: Sequence[MessageKind]
    ) -> tuple[Column, Column]:
        """The headers and bodies that are to be sent; `numbers`: which of the `kinds` a row has."""
        chosen = [self._compressor(kind) for kind in kinds]
        distinct = list(dict.fromkeys(chosen))
        chosen_of = np.array([distinct.index(one) for one in chosen], np.int32)[numbers]
        frames = _frames(distinct, bodies, chosen_of)
        lines: Column = pa.array([one.lines for one in distinct], BINARY).take(chosen_of)
        is_smaller = sizes_of(frames) + sizes_of(lines) < sizes_of(bodies)
        if not is_smaller.all():
            smaller = pa.array(is_smaller)
            frames = pc.if_else(smaller, frames, bodies)
            lines = pc.if_else(smaller, lines, _NOTHING)
        return pc.binary_join_element_wise(headers, lines, _NOTHING), frames

    def _compressor(self, kind: MessageKind) -> "_Compressor":
        table = tuple(kind.values[name] for name in _TABLE)
        if table not in self._dictionaries:
            return self._usual
        if table not in self._compressors:
            self._compressors[table] = _Compressor(self._dictionaries[table])
        return self._compressors[table]


class _Compressor(Frames):
    """`lines` are the headers of its messages."""

    def __init__(self, dictionary: bytes = b"") -> None:
        super().__init__(dictionary)
        self.lines = b"".join(
            b"%b: %b\r\n" % (name.encode(), value) for name, value in self.headers.items()
        )

    def of(self, bodies: Column) -> Column:
        """All of them in one call: one for each would cost twice the time."""
        ends, (_, _, data) = offsets_of(bodies), bodies.buffers()
        segments = np.empty((len(bodies), 2), np.uint64)
        segments[:, 0], segments[:, 1] = ends[:-1], ends[1:] - ends[:-1]
        found = self.compressor.multi_compress_to_buffer(
            self.zstd.BufferWithSegments(memoryview(data), segments.tobytes())
        )
        bounds = array("i", accumulate(map(len, found), initial=0))
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(b"".join(found))]
        return pa.Array.from_buffers(BINARY, len(bodies), buffers, 0)


def _frames(compressors: Sequence[_Compressor], bodies: Column, numbers: Numbers) -> Column:
    """Each body's frame; `numbers` is which compressor it has."""
    if len(compressors) == 1:
        return compressors[0].of(bodies)
    rows = [np.flatnonzero(numbers == number) for number in range(len(compressors))]
    parts = [
        one.of(bodies.take(some)) for one, some in zip(compressors, rows, strict=True) if len(some)
    ]
    return pa.concat_arrays(parts).take(np.argsort(np.concatenate(rows)))
