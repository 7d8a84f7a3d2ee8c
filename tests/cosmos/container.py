"""A container of the stand-in: items, physical partitions with LSNs, both change feeds. No HTTP.

Sources: "Change feed modes in Azure Cosmos DB" and "Change feed design patterns" (Microsoft Learn)
for what each mode shows and for `_lsn` being a transaction's; azure-cosmos `partition_key.py` for
the hash. Children of a split and of a merge inherit the newest LSN of their parents: an assumption.
"""

import base64
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from azure.cosmos import PartitionKey

Item = dict[str, Any]
_SYSTEM = ("_rid", "_self", "_etag", "_attachments", "_ts", "_lsn")


class ItemConflict(Exception):
    """An item that is there already, or whose etag is another one; `status` as of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class PhysicalRange:
    """A physical partition: keys from `min` to below `max`. `born` is the generation of the map."""

    id: str
    min: str
    max: str
    parents: tuple[str, ...] = ()
    lsn: int = 0
    born: int = 0

    def holds(self, epk: str) -> bool:
        """Whether a key's hash is in it."""
        return self.min <= epk < self.max


@dataclass(frozen=True)
class ItemVersion:
    """One change of the log of all versions."""

    epk: str
    lsn: int
    kind: str
    at: float
    current: Item | None
    previous: Item | None
    previous_lsn: int
    expired: bool = False


@dataclass(frozen=True)
class FeedPage:
    """An answer of the change feed; no documents is 304."""

    documents: Sequence[Item]
    etag: str
    lsn: int


@dataclass
class StoredContainer:
    """All of one container. `clock` is seconds since 1970."""

    name: str
    paths: Sequence[str] = ("/pk",)
    number: int = 1
    clock: Callable[[], float] = time.time
    previous_images: bool = True
    retained: int = 0
    """All versions up to this LSN are gone."""
    ranges: list[PhysicalRange] = field(default_factory=list)
    items: dict[tuple[str, str], Item] = field(default_factory=dict)
    log: list[ItemVersion] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.generation = 1
        self._ids, self._rids = itertools.count(), itertools.count(1)
        self._epks: dict[tuple[str, str], str] = {}
        self.ranges.append(PhysicalRange(next(self), "", "FF", born=1))

    def __next__(self) -> str:
        return str(next(self._ids))

    @property
    def rid(self) -> str:
        """The container's resource id."""
        return self._rid(4)

    def _rid(self, size: int, document: int = 0) -> str:
        number = self.number.to_bytes(4, "big") + (0x80 << 24 | self.number).to_bytes(4, "big")
        raw = number[: 4 + size] + (document.to_bytes(8, "little") if document else b"")
        return base64.b64encode(raw).decode().replace("/", "-")

    @property
    def properties(self) -> dict[str, Any]:
        """As the service describes it."""
        kind = "Hash" if len(self.paths) == 1 else "MultiHash"
        return {
            "id": self.name,
            "_rid": self.rid,
            "_self": f"dbs/{self.rid[:8]}/colls/{self.rid}/",
            "_etag": '"0"',
            "_ts": 1_700_000_000,
            "partitionKey": {"paths": list(self.paths), "kind": kind, "version": 2},
        }

    def value_of(self, item: Item) -> list[Any]:
        """An item's partition key."""
        found: list[Any] = []
        for path in self.paths:
            value: Any = item
            for name in path.strip("/").split("/"):
                value = value.get(name) if isinstance(value, dict) else None
            found.append(value)
        return found

    def epk(self, values: Sequence[Any]) -> str:
        """The effective partition key, by the SDK's own hash."""
        kind = "Hash" if len(self.paths) == 1 else "MultiHash"
        path: Any = list(self.paths) if len(self.paths) > 1 else self.paths[0]
        key = PartitionKey(path=path, kind=kind)  # type: ignore[call-overload]
        return str(key._get_effective_partition_key_string(list(values)))

    def range_of(self, epk: str) -> PhysicalRange:
        """The physical partition of a hash."""
        return next(each for each in self.ranges if each.holds(epk))

    def find(self, range_id: str) -> PhysicalRange | None:
        """A physical partition that is there now."""
        return next((each for each in self.ranges if each.id == range_id), None)

    def put(self, item: Item, *, how: str = "upsert", etag: str = "", ttl: bool = False) -> Item:
        """One write: `create`, `upsert`, `replace` or `delete`; the item as stored."""
        return self.transaction([(how, item)], etag=etag, ttl=ttl)[0]

    def transaction(
        self, writes: Iterable[tuple[str, Item]], *, etag: str = "", ttl: bool = False
    ) -> list[Item]:
        """Writes of one partition key, all with one LSN. Raises ItemConflict."""
        with self.lock:
            planned = [(how, item, self.epk(self.value_of(item))) for how, item in writes]
            if len({epk for _, _, epk in planned}) != 1:
                raise ItemConflict(400, "a transaction has one partition key")
            place = self.range_of(planned[0][2])
            for how, item, epk in planned:
                self._verify(how, self.items.get((epk, str(item["id"]))), etag)
            place.lsn += 1
            return [self._write(how, item, epk, place.lsn, ttl) for how, item, epk in planned]

    @staticmethod
    def _verify(how: str, known: Item | None, etag: str) -> None:
        if how == "create" and known is not None:
            raise ItemConflict(409, "Entity with the specified id already exists in the system.")
        if how in ("replace", "delete") and known is None:
            raise ItemConflict(404, "Entity with the specified id does not exist in the system.")
        if etag and known is not None and known["_etag"] != etag:
            raise ItemConflict(412, "Operation cannot be performed because one of the specified"
                                " precondition is not met.")  # fmt: skip

    def _write(self, how: str, item: Item, epk: str, lsn: int, ttl: bool) -> Item:
        key, now = (epk, str(item["id"])), self.clock()
        known = self.items.get(key)
        rid = known["_rid"] if known else self._rid(4, next(self._rids))
        stored = {
            **{name: value for name, value in item.items() if name not in _SYSTEM},
            "_rid": rid,
            "_self": f"dbs/{self.rid[:8]}/colls/{self.rid}/docs/{rid}/",
            "_etag": f'"{lsn:08x}-{len(self.log):08x}"',
            "_attachments": "attachments/",
            "_ts": int(now),
            "_lsn": lsn,
        }
        kind = "delete" if how == "delete" else "replace" if known else "create"
        if how == "delete":
            self.items.pop(key)
        else:
            self.items[key] = stored
            self._epks[key] = epk
        before = known["_lsn"] if known else 0
        current = None if how == "delete" else stored
        self.log.append(ItemVersion(epk, lsn, kind, now, current, known, before, ttl))
        return stored

    def split(self, at: str = "", range_id: str = "") -> list[PhysicalRange]:
        """Two children in place of a range (the first one): at a hash, or in the middle."""
        with self.lock:
            found = (self.find(range_id) if range_id else None) or next(
                each for each in self.ranges if not at or each.min < at < each.max
            )
            # Hashes of version 2 have two zero bits in front.
            edges = (found.min, "40" if found.max == "FF" else found.max)
            low, high = (int(edge.ljust(32, "0"), 16) for edge in edges)
            at = at or f"{(low + high) // 2:032X}"
            return self._replace([found], [(found.min, at), (at, found.max)])

    def merge(self, left: PhysicalRange, right: PhysicalRange) -> PhysicalRange:
        """One child of two neighbours."""
        with self.lock:
            return self._replace([left, right], [(left.min, right.max)])[0]

    def _replace(
        self, old: Sequence[PhysicalRange], new: Sequence[tuple[str, str]]
    ) -> list[PhysicalRange]:
        self.generation += 1
        lsn = max(each.lsn for each in old)
        parents = tuple(dict.fromkeys(p for each in old for p in (*each.parents, each.id)))
        made = [PhysicalRange(next(self), low, high, parents, lsn, self.generation)
                for low, high in new]  # fmt: skip
        self.ranges = sorted(
            [each for each in self.ranges if each not in old] + made, key=lambda each: each.min
        )
        return made

    def feed(
        self,
        place: PhysicalRange,
        *,
        after: int | None,
        since: float | None = None,
        keys: tuple[str, str] = ("", "FF"),
        most: int = 100,
        every: bool = False,
    ) -> FeedPage:
        """A page after an LSN; a transaction is never cut. `after` None is now; `keys` a filter;
        `every` all versions."""
        with self.lock:
            if after is None:
                return FeedPage([], f'"{place.lsn}"', place.lsn)
            found = [
                (lsn, document)
                for epk, lsn, document in self._feed(every, since)
                if lsn > after and place.holds(epk) and keys[0] <= epk < keys[1]
            ]
            found.sort(key=lambda each: each[0])
            page = found if most <= 0 else found[:most]
            if page:
                last = page[-1][0]
                page += [each for each in found[len(page) :] if each[0] == last]
                return FeedPage([each for _, each in page], f'"{last}"', place.lsn)
            return FeedPage([], f'"{max(after, place.lsn)}"', place.lsn)

    def _feed(self, every: bool, since: float | None) -> Iterable[tuple[str, int, Item]]:
        if every:
            for version in self.log:
                yield version.epk, version.lsn, self._shown(version)
            return
        for key, item in self.items.items():
            if since is None or item["_ts"] > since:
                yield self._epks[key], item["_lsn"], item

    def _shown(self, version: ItemVersion) -> Item:
        metadata: dict[str, Any] = {
            "operationType": version.kind,
            "lsn": version.lsn,
            "crts": int(version.at),
            "previousImageLSN": version.previous_lsn,
        }
        shown: Item = {"current": {}, "metadata": metadata}
        if version.current is not None:
            shown["current"] = version.current
        if version.previous is not None and self.previous_images:
            shown["previous"] = version.previous
        if version.kind == "delete" and version.previous is not None:
            values = self.value_of(version.previous)
            names = [path.strip("/") for path in self.paths]
            metadata["id"] = version.previous["id"]
            metadata["partitionKey"] = dict(zip(names, values, strict=True))
            metadata |= {"timeToLiveExpired": True} if version.expired else {}
        return shown
