"""The states of exactly-once publishing, as a table.

Batches follow each other while what is stored is known and nothing is refused. After a refusal, and
after a connection that broke with batches in flight, what is stored is read back; then one atomic
batch goes alone, and when it is stored, batches follow each other again.
"""

from collections.abc import Mapping
from enum import Enum


class Sending(Enum):
    """Where exactly-once publishing is."""

    UNREAD = "unread"  # what is stored has to be read; nothing of ours was in flight
    FLOWING = "flowing"  # batches follow each other
    REFUSED = "refused"  # a batch was refused: the other answers are waited for
    DOUBTFUL = "doubtful"  # what was in flight may be stored: it has to be read
    CAREFUL = "careful"  # one atomic batch is in flight at most


class SendingEvent(Enum):
    """What happens to it."""

    READ = "read"  # what is stored was read back
    EMPTIED = "emptied"  # the stream had messages and has none; it may know their ids
    STORED = "stored"  # the oldest batch in flight was stored
    REFUSED = "refused"  # a batch in flight was refused
    SETTLED = "settled"  # and all others have been answered
    RECONNECTED = "reconnected"  # another connection; nothing was in flight
    LOST = "lost"  # another connection; the answers to what was in flight are lost


_S, _E = Sending, SendingEvent
TABLE: Mapping[tuple[Sending, SendingEvent], Sending] = {
    (_S.UNREAD, _E.READ): _S.FLOWING,
    (_S.UNREAD, _E.EMPTIED): _S.CAREFUL,
    (_S.UNREAD, _E.RECONNECTED): _S.UNREAD,
    (_S.FLOWING, _E.STORED): _S.FLOWING,
    (_S.FLOWING, _E.REFUSED): _S.REFUSED,
    (_S.FLOWING, _E.RECONNECTED): _S.UNREAD,
    (_S.FLOWING, _E.LOST): _S.DOUBTFUL,
    (_S.REFUSED, _E.REFUSED): _S.REFUSED,
    (_S.REFUSED, _E.SETTLED): _S.DOUBTFUL,
    (_S.REFUSED, _E.LOST): _S.DOUBTFUL,
    (_S.DOUBTFUL, _E.READ): _S.CAREFUL,
    (_S.DOUBTFUL, _E.EMPTIED): _S.CAREFUL,
    (_S.DOUBTFUL, _E.RECONNECTED): _S.DOUBTFUL,
    (_S.CAREFUL, _E.STORED): _S.FLOWING,
    (_S.CAREFUL, _E.REFUSED): _S.REFUSED,
    (_S.CAREFUL, _E.RECONNECTED): _S.DOUBTFUL,
    (_S.CAREFUL, _E.LOST): _S.DOUBTFUL,
}
