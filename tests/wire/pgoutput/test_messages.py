import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import Malformed
from penstock.wire.pgoutput.messages import (
    UNCHANGED,
    Begin,
    Binary,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    OriginMessage,
    Relation,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
    Truncate,
    TwoPhase,
    Type,
    Update,
    decode_message,
)
from tests.wire import pages
from tests.wire.golden import Sent, golden, names

EVERY = {
    Begin, Commit, Delete, Insert, LogicalMessage, OriginMessage, Relation, StreamAbort,
    StreamCommit, StreamStart, StreamStop, Truncate, TwoPhase, Type, Update,
}  # fmt: skip


def one_of_each() -> list[Sent]:
    """One message of every kind, streamed and not, and of every server."""
    found: dict[tuple[str, type, bool], Sent] = {}
    for name in names():
        for sent in golden(name).sent:
            found.setdefault((name, type(sent.message), sent.streamed), sent)
    return list(found.values())


EACH = one_of_each()
READ = [sent for sent in EACH if not isinstance(sent.message, TwoPhase)]


def test_the_captures_hold_every_message_there_is() -> None:
    assert {type(sent.message) for sent in EACH} == EVERY == set(Message.__args__)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(EVERY - {TwoPhase}, key=lambda kind: kind.__name__))
def test_any_prefix_of_a_message_is_malformed(kind: type) -> None:
    for sent in READ:
        if not isinstance(sent.message, kind):
            continue
        for end in range(min(len(sent.raw), 3000)):
            with pytest.raises(Malformed):
                decode_message(sent.raw[:end], streamed=sent.streamed)


@pytest.mark.parametrize("sent", READ, ids=lambda sent: type(sent.message).__name__)
def test_bytes_behind_a_message_are_malformed(sent: Sent) -> None:
    with pytest.raises(Malformed, match="1 bytes after its end"):
        decode_message(sent.raw + b"\0", streamed=sent.streamed)


@pytest.mark.slow
@given(data=st.binary(max_size=60), tag=st.sampled_from(b"BMCORYIUDTSEcAbPKrp"), xid=st.booleans())
def test_noise_is_malformed_or_a_message(data: bytes, tag: int, xid: bool) -> None:
    try:
        message = decode_message(bytes([tag]) + data, streamed=xid)
    except Malformed:
        return
    assert type(message) in EVERY


@given(cut=st.integers(0, 10**6), value=st.integers(0, 255), which=st.integers(0, len(EACH) - 1))
def test_a_changed_byte_is_malformed_or_a_message(cut: int, value: int, which: int) -> None:
    sent = EACH[which]
    raw = bytearray(sent.raw)
    raw[cut % len(raw)] = value
    try:
        message = decode_message(bytes(raw), streamed=sent.streamed)
    except Malformed:
        return
    assert type(message) in EVERY


@pytest.mark.parametrize("data", [b"", b"X", b"\0", b"w", b"Z123"])
def test_an_unknown_tag_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode_message(data)


def test_a_transaction_reads_as_it_was_sent() -> None:
    assert decode_message(pages.begin(0x16B3748, at=pages.EPOCH + 5, xid=9)) == Begin(
        final_lsn=0x16B3748, committed_at=946_684_800_000_005, xid=9
    )
    assert decode_message(pages.commit(100, at=pages.EPOCH)) == Commit(
        flags=0, commit_lsn=100, end_lsn=108, committed_at=946_684_800_000_000
    )


def test_rows_read_as_they_were_sent() -> None:
    new = (b"1", None, UNCHANGED)
    key = (b"0", None, None)
    assert decode_message(pages.insert(5, [1, None, ...])) == Insert(xid=None, relation=5, new=new)
    assert decode_message(pages.insert(5, [1, None, ...], xid=8), streamed=True) == Insert(
        xid=8, relation=5, new=new
    )
    assert decode_message(pages.update(5, [1, None, ...])) == Update(
        xid=None, relation=5, old_kind="", old=None, new=new
    )
    assert decode_message(pages.update(5, [1, None, ...], key=[0, None, None])) == Update(
        xid=None, relation=5, old_kind="K", old=key, new=new
    )
    assert decode_message(pages.delete(5, old=[0, None, None])) == Delete(
        xid=None, relation=5, old_kind="O", old=key
    )
    assert decode_message(pages.truncate([5, 6])) == Truncate(xid=None, options=0, relations=(5, 6))


def test_a_binary_column_reads_as_binary() -> None:
    raw = b"I\0\0\0\5N\0\1b\0\0\0\2hi"
    assert decode_message(raw) == Insert(xid=None, relation=5, new=(Binary(b"hi"),))


def test_a_negative_size_is_malformed() -> None:
    for raw in (b"I\0\0\0\5N\0\1t\xff\xff\xff\xff", b"I\0\0\0\5N\xff\xff", b"T\xff\xff\xff\xff\0"):
        with pytest.raises(Malformed):
            decode_message(raw)


def test_a_name_that_is_not_utf8_is_malformed_and_not_shown() -> None:
    with pytest.raises(Malformed, match="a name is not UTF-8"):
        decode_message(b"O" + bytes(8) + b"\xff\xfe\0")


def test_an_unknown_replica_identity_is_malformed() -> None:
    raw = pages.relation(1, {"id": 23}, identity="z")
    with pytest.raises(Malformed, match="replica identity"):
        decode_message(raw)


def test_partitions_publish_under_their_root_and_announce_it() -> None:
    relations = golden("pg16-v1").of(Relation)
    assert "parted" in {relation.name for relation in relations}


def test_two_phase_messages_have_their_names() -> None:
    found = {message.name for message in golden("pg16-two-phase").of(TwoPhase)}
    kinds = {"BeginPrepare", "Prepare", "CommitPrepared", "RollbackPrepared", "StreamPrepare"}
    assert found == kinds
