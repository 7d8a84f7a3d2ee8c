"""What NATS asks of the messages that the shelf makes: the first line of headers, where the server
looks for an event id, and how large a message may be."""

from penstock.nats.protocol import HEADERS_START
from penstock.sinks.encoding.message import EVENT_ID, Framing

# The server drops a message whose id it has had inside its duplicate window.
MSG_ID = "Nats-Msg-Id"


def nats_framing(*, ids: bool = True, limit: int = 1 << 20) -> Framing:
    """`limit`: bytes that a message may have, by default as many as a server's default is; `ids`:
    whether the server shall look at them."""
    return Framing(
        start=HEADERS_START,
        event_id=MSG_ID if ids else EVENT_ID,
        limit=limit,
        remedy="raise max_payload of nats-server, or leave the large column out",
    )
