"""The publisher of a session: by its delivery, with the limits that the settings say."""

from penstock.sinks.jetstream.publishing.atomic import Atomic
from penstock.sinks.jetstream.publishing.flight import LARGEST, FlightLimits
from penstock.sinks.jetstream.publishing.individual import Individual
from penstock.sinks.jetstream.publishing.publisher import Publisher, Tally
from penstock.sinks.jetstream.session import Session
from penstock.sinks.settings import BatchSettings

_FILL = 2 << 20  # bytes that messages of several changes wait for while the server is busy


def new_publisher(session: Session, tally: Tally) -> Publisher:
    """A publisher that counts in `tally`; it has to be resumed before it publishes."""
    settings, flow = session.settings, session.flow
    if session.delivery == "exactly-once" and (stream := session.stream):
        return Atomic(
            tally,
            flow,
            stream=settings.stream,
            template=session.template,
            # A message of several changes has the batch's limits itself.
            limits=_limits(settings.batch)
            if settings.messages == "change"
            else FlightLimits(fill=_FILL),
            chains=session.chains,
            exclusive=stream.is_ours(session.template),
            replicated=stream.replicated,
        )
    stream = session.stream
    return Individual(
        tally,
        flow,
        window=settings.window,
        window_bytes=settings.window_bytes,
        chained=session.delivery == "deduplicated" and not (stream and stream.replicated),
    )


def _limits(batch: BatchSettings) -> FlightLimits:
    """What the settings say of a batch; see `BatchSettings` for what their defaults mean."""
    usual, most = BatchSettings(), FlightLimits()
    return FlightLimits(
        size=LARGEST if batch.max_size == usual.max_size else batch.max_size,
        bytes=most.bytes if batch.max_bytes == usual.max_bytes else batch.max_bytes,
    )
