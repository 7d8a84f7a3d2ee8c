"""Peers: other programs that drain a slot into a stream, measured in the same run as we are."""

import shlex
import subprocess
import time
from dataclasses import dataclass

from .stream import stored, wait_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A command; {slot}, {publication}, {pg_url}, {nats_url}, {stream} and {rows} are filled in.

    It drains the slot into the stream, which it makes, and either ends when it has delivered
    `rows` changes or is ended when the stream has not grown for `quiet` seconds.
    """

    name: str
    command: str
    quiet: float = 5.0


def parse_peer(text: str) -> Peer:
    """`name=command`; raises ValueError."""
    name, equals, command = text.partition("=")
    if not equals or not name.strip() or not command.strip():
        raise ValueError(f"a peer is name=command, not {text!r}")
    return Peer(name=name.strip(), command=command.strip())


def run_peer(
    peer: Peer, *, slot: str, publication: str, pg_url: str, nats_url: str, stream: str, rows: int
) -> float:
    """Rows a second from its first message stored to its last. Raises RuntimeError when it ends
    with another code than 0, or stores nothing."""
    filled = {
        "slot": slot, "publication": publication, "pg_url": pg_url, "nats_url": nats_url,
        "stream": stream, "rows": str(rows),
    }  # fmt: skip
    words = [word.format_map(filled) for word in shlex.split(peer.command)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    grown, known = time.monotonic(), 0

    def done() -> bool:
        nonlocal grown, known
        count = stored(nats_url, stream)[0]
        if count != known:
            grown, known = time.monotonic(), count
        quiet = known > 0 and time.monotonic() - grown > peer.quiet
        return quiet or process.poll() is not None

    try:
        wait_for(done, timeout=600, alive=lambda: None)
    finally:
        code = process.poll()
        if code is None:
            process.terminate()
        _, said = process.communicate(timeout=30)
    if code:
        raise RuntimeError(f"{peer.name} ended with {code}: {said.decode(errors='replace')[-500:]}")
    count, first, last = stored(nats_url, stream)
    if not count or last <= first:
        raise RuntimeError(f"{peer.name} stored {count} messages")
    return rows / (last - first)
