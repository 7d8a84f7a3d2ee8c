"""Dictionaries for the tables of a stream, trained on the bodies of its newest messages."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing

from penstock.consumer.tail.bodies import changes_of
from penstock.model.errors import Malformed, SettingsError
from penstock.nats.api import JetStream
from penstock.nats.compression import Decompressor, DictionaryBucket, TableDictionary
from penstock.nats.connection import Connection
from penstock.nats.consumers import Delivered, PullConsumer
from penstock.nats.settings import NatsSettings
from penstock.process.plugins import driver

_LEAST = 100  # messages of a table
_BYTES = 64 << 20  # of samples
_HELD_OUT = 10  # one of so many messages is not trained on, but measured
_SHARE = 8  # a dictionary is at most this part of what it is trained on
_SILENCE = 5.0  # seconds

Samples = Mapping[tuple[str, str, str], Sequence[bytes]]  # by backend, namespace and table


def samples(settings: NatsSettings, stream: str, messages: int) -> Samples:
    """The plain bodies of a stream's newest messages. Raises Unavailable, SettingsError."""
    found = defaultdict[tuple[str, str, str], list[bytes]](list)
    with closing(Connection(settings)) as connection:
        connection.open()
        decompressor = Decompressor(DictionaryBucket(connection).get)
        for message in _newest(connection, stream, messages):
            body = decompressor.plain(message.headers, message.payload)
            plain = {k: v for k, v in message.headers.items() if k != "Content-Encoding"}
            try:
                change = changes_of(plain, body)[0]
            except (Malformed, IndexError):
                continue
            # A document database's namespace is its database.
            names = change.get("schema") or change.get("database"), change.get("collection")
            if all(names):
                found[str(change["backend"]), str(names[0]), str(names[1])].append(body)
    return found


def _newest(connection: Connection, stream: str, count: int) -> Sequence[Delivered]:
    if (info := JetStream(connection).stream(stream)) is None:
        raise SettingsError(
            f"there is no stream {stream!r}",
            "consumer.stream-missing",
            hint="run the pipeline first",
        )
    end = int(info["state"]["last_seq"])
    first = max(int(info["state"]["first_seq"]), end - count + 1, 1)
    config = {"deliver_policy": "by_start_sequence", "opt_start_seq": first}
    consumer, found, size = PullConsumer(connection, stream, config), list[Delivered](), 0
    while end and consumer.pending and size < _BYTES:
        some = consumer.next(_SILENCE)
        found += some
        size += sum(len(one.payload) for one in some)
        if not some or some[-1].sequence >= end:
            break
    return found


def trained(
    table: tuple[str, str, str], bodies: Sequence[bytes], size: int
) -> tuple[TableDictionary, bytes]:
    """A dictionary of at most `size` bytes. Raises SettingsError where there are too few bodies."""
    name = ".".join(table)
    if len(bodies) < _LEAST:
        raise SettingsError(
            f"{name} has {len(bodies)} messages among those: too few to train a dictionary",
            "consumer",
            hint=f"it takes {_LEAST}: read more of them with --messages, or wait until it has more",
        )
    zstd = driver("zstandard")
    measured, learnt = bodies[::_HELD_OUT], [
        one for number, one in enumerate(bodies) if number % _HELD_OUT
    ]  # fmt: skip
    most = min(size, sum(map(len, learnt)) // _SHARE)
    try:
        made = zstd.train_dictionary(most, learnt)
    except zstd.ZstdError as error:
        raise SettingsError(
            f"no dictionary can be trained for {name}: {error}",
            "consumer",
            hint="its messages may be too small, or all alike: leave the table out",
        ) from None

    def ratio(**options: object) -> float:
        compressor = zstd.ZstdCompressor(level=1, **options)
        sizes = [(len(one), len(compressor.compress(one))) for one in measured]
        return round(sum(one for one, _ in sizes) / sum(two for _, two in sizes), 2)

    backend, namespace, collection = table
    about = TableDictionary(
        id=str(made.dict_id()), backend=backend, namespace=namespace, table=collection,
        size=len(made), samples=len(learnt), ratio=ratio(dict_data=made), plain_ratio=ratio(),
    )  # fmt: skip
    return about, made.as_bytes()
