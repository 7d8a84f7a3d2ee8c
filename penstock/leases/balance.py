"""Which leases a host takes, so that all hosts have about as many. Pure.

A lease that another host has asked for counts as that host's: its owner is about to release it, or
has just done so.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from penstock.leases import Lease


class Taking(NamedTuple):
    """A lease to take, and why: nobody has it, its owner's term is over, or its owner has more than
    its share. `steal`: ask the owner for it."""

    lease: Lease
    reason: Literal["free", "expired", "steal"]


def balance(
    leases: Sequence[Lease],
    host: str,
    *,
    expired: Collection[str] = (),
    min_partitions: int = 0,
    max_partitions: int = 0,
) -> list[Taking]:
    """The leases that `host` is to take now, of all that there are.

    `expired` are names: a host's own clock says when an owner's term is over. The target is the
    number of leases divided by the number of live owners, rounded up, with this host among them;
    at most `max_partitions` (0: no limit), then at least `min_partitions`. Leases without a live
    owner come first, as many as are needed and in the order given; only where there are none, one
    is stolen from the owner that has most (of equals the last by name): if that is more than the
    target, or more than one less when more than one is needed.
    """
    over = set(expired)
    counts, vacant = Counter({host: 0}), list[Lease]()
    for lease in leases:
        owner = "" if lease.name in over else _owner(lease)
        if not owner or (owner == host and not lease.owner):
            vacant.append(lease)
        else:
            counts[owner] += 1
    target = -(-len(leases) // len(counts))
    target = max(min(target, max_partitions or target), min_partitions)
    needed = target - counts[host]
    if needed <= 0:
        return []
    if vacant:
        vacant.sort(key=lambda lease: _owner(lease) != host)  # first what it has asked for
        return [Taking(lease, "expired" if lease.owner else "free") for lease in vacant[:needed]]
    most, owner = max(((n, name) for name, n in counts.items() if name != host), default=(0, ""))
    if most <= target - (needed > 1):
        return []
    owned = [lease for lease in leases if lease.owner == owner == _owner(lease)]
    return [Taking(lease, "steal") for lease in owned if lease.name not in over][:1]


def _owner(lease: Lease) -> str:
    return str(lease.properties.get("asked_by") or lease.owner)
