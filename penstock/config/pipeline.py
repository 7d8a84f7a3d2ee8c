"""The pipeline file as a value: what runs, from where, to where.

Feeds and sinks bring their own settings; this model only knows that they have some.
`docs/reference/pipeline.md` lists every key, and a test holds the two together.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from penstock.config.documents import refuse_schema, with_documents
from penstock.feeds import Feed, FeedPlugin, HasSources, ListsTables
from penstock.leases import LeaseStore
from penstock.model.change import Images, OnError
from penstock.model.problems import problems_of
from penstock.model.settings import Duration, Secret, Settings, Size, parse_duration
from penstock.ops.thresholds import Thresholds, Webhook
from penstock.process.plugins import plugin
from penstock.sinks import Sink, SinkPlugin
from penstock.sinks.server import SinkServer

if TYPE_CHECKING:
    from penstock.config.map_store import MapContent, MapStore

# Names become parts of event ids, subjects, file names and lease paths.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def is_name(text: str) -> bool:
    """Whether it can be the name of a pipeline, a backend or a processor."""
    return _NAME.fullmatch(text) is not None


def _name(value: Any) -> Any:
    if isinstance(value, str) and not is_name(value):
        raise ValueError("may have letters, digits, '_' and '-' only (it is part of subjects)")
    return value


Name = Annotated[str, BeforeValidator(_name)]
HostName = Annotated[str, Field(pattern=r"^[a-z0-9._-]+$")]
Seconds = Annotated[Duration, Field(gt=0)]
Port = Annotated[int, Field(ge=1, le=65535)]


def _spark_text(value: Any) -> Any:
    """Spark's conf is text; YAML's true and 200 are what people write."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _spark_mode(value: Any) -> Any:
    if value == "packed":
        raise ValueError(
            "packed is no more: leave spark.mode out (with an interval as trigger, micro-batches"
            " are of rows)"
        )
    return value


def _trigger(value: Any) -> Any:
    seconds = value if value == "realtime" else parse_duration(value)
    if not isinstance(seconds, str) and seconds < 0:
        raise ValueError("is a duration, or realtime")
    return seconds


Trigger = Annotated[float | Literal["realtime"], BeforeValidator(_trigger)]


HomePath = Annotated[Path, AfterValidator(Path.expanduser)]


def state_folder(name: str) -> Path:
    """Where a pipeline keeps what it must remember, unless `state` is set."""
    root = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(root) / "penstock" / name


class Backend(Settings):
    """One source of changes. `settings` is the feed's own model."""

    name: Name
    """The backend's name. It is part of every event id and of subjects: do not change it later."""
    type: str
    """The kind of source."""
    on_error: Annotated[OnError, BeforeValidator(lambda value: value or "dead-letter")] = (
        "dead-letter"
    )
    """What happens to a change that cannot be decoded, encoded or stored: `dead-letter`, `suspend`
    its table, or `stop` the backend."""
    max_gap: Duration | None = Field(default=None, gt=0)
    """A gap: the source's clock moves so many seconds on without an event or an idle token."""
    partitions: int | None = Field(default=None, ge=1, le=1024)
    """The number of hash partitions of its changes; default: the pipeline's `partitions`."""
    settings: SerializeAsAny[Settings]

    @field_validator("max_gap")
    @classmethod
    def _has_a_clock(cls, seconds: float | None, info: ValidationInfo) -> float | None:
        kind = info.data.get("type", "")
        if seconds is not None and kind and not plugin("feeds", kind).has_clock:
            raise ValueError(
                f"finds nothing with {kind}: each answer of this source has changes or says that"
                " there are none; leave it out"
            )
        return seconds

    def sharing(self, with_: int) -> "Backend":
        """The same with its part of what so many backends of its type may do together."""
        name = plugin("feeds", self.type).share if self.type else ""
        if not name or name in self.settings.model_fields_set:
            return self
        part = self.settings.model_copy(update={name: 1 / with_})
        return self.model_copy(update={"settings": part})

    def following(self, tables: tuple[str, ...]) -> "Backend":
        """The same with these tables, where the file names none."""
        if "tables" in self.settings.model_fields_set:
            return self
        settings = self.settings.model_copy(update={"tables": tables})
        return self.model_copy(update={"settings": settings})

    def writing(self, values: str) -> "Backend":
        """The same with values of columns written so. Raises ValueError where it cannot."""
        if not isinstance(self.settings, Settings):
            return self  # it is refused
        if "values" not in type(self.settings).model_fields:
            raise ValueError(
                f"backend {self.name}: the sink's layout needs backends of type postgres"
            )
        settings = self.settings.model_copy(update={"values": values})
        return self.model_copy(update={"settings": settings})

    def feed(self) -> Feed:
        """Builds the feed; does no I/O. Raises SettingsError for one that lacks methods."""
        found: FeedPlugin = plugin("feeds", self.type)
        return found.feed(self.settings)

    def databases(self) -> Sequence[ListsTables]:
        """The feeds of its sources that list tables; does no I/O."""
        feed = self.feed()
        each = [feed.of(one) for one in feed.sources] if isinstance(feed, HasSources) else [feed]
        return [one for one in each if isinstance(one, ListsTables)]


class SinkChoice(Settings):
    """Where changes go. `settings` is the sink's own model."""

    type: str
    """The kind of sink."""
    settings: SerializeAsAny[Settings]

    @field_validator("settings")
    @classmethod
    def _no_policy(cls, settings: Settings) -> Settings:
        if "on_error" in settings.model_fields_set:
            raise ValueError("on_error belongs to each backend: backends[].on_error")
        if "initial" in settings.model_fields_set:
            raise ValueError("initial belongs to snapshot.initial")
        if "connector" in settings.model_fields_set:
            raise ValueError("connector is set by each backend's type: leave it out")
        return settings

    @property
    def plug_in(self) -> SinkPlugin:
        """What the sink's entry point names."""
        found: SinkPlugin = plugin("sinks", self.type)
        return found

    def sink(self) -> Sink:
        """Builds the sink; does no I/O."""
        return self.plug_in.build(self.settings)

    @property
    def images(self) -> Images:
        """How the sink takes a change's images."""
        found: Images = getattr(self.settings, "images", "json")
        return found

    def has_layout(self, name: str) -> bool:
        """Whether its messages are written so."""
        return getattr(self.settings, "layout", "") == name

    def leases(self) -> LeaseStore | None:
        """Where the sink's other side keeps leases, if it does; does no I/O."""
        leases = self.plug_in.leases
        return None if leases is None else leases(self.settings)

    def server(self) -> SinkServer | None:
        """The server with the stream of changes, if the sink has one; does no I/O."""
        server = self.plug_in.server
        return None if server is None else server(self.settings)

    @property
    def shows_map(self) -> bool:
        """Whether the ops server shows what the destination and the sources have of its map."""
        found: bool = getattr(self.settings, "shows_map", False)
        return found

    @property
    def map_file(self) -> str:
        """The path of the map that may be edited while the pipeline runs; "" for none."""
        found: str = getattr(self.settings, "map_file", "")
        return found


class Transform(Settings):
    """One step over the view `changes`; its result is `changes` for the next."""

    sql: str = Field(min_length=1)
    """A SELECT of Spark SQL."""


class Checkpoint(Settings):
    """How often positions are stored: after `interval` or `event_count`, whichever is first."""

    interval: Duration = Field(default=5.0, ge=0)
    """Seconds between two saved positions."""
    event_count: int = Field(default=1000, ge=1)
    """Changes between two saved positions."""


class Ops(Thresholds):
    """The ops server, and when a pipeline stops being healthy."""

    bind: str = "127.0.0.1"
    """The address that the ops server listens on."""
    port: int = Field(default=9090, ge=0, le=65535)
    """The port of the ops server; 0 takes a free one."""
    extra_ports: tuple[Port, ...] = ()
    """More ports that serve the same."""
    hosts: tuple[HostName, ...] = ()
    """Names that requests may use besides loopback and `bind`. The server refuses other names: web
    pages could use their own to read the status."""
    token: Secret | None = Field(default=None, min_length=1)
    """A client with this token may act, and read row data; without a token there are no actions."""
    read_token: Secret | None = Field(default=None, min_length=1)
    """If it is set, reading needs this token or `token`, except for health and readiness."""
    notify: tuple[Webhook, ...] = ()
    """Webhooks that get notifications."""


class SnapshotSettings(Settings):
    """Snapshots of tables, taken on request, and where it is `initial` once for each table."""

    initial: bool | None = None
    """Whether each table gets a snapshot once, without a request; default: for sinks of tables."""
    stream: str = Field(default="INIT", pattern=r"^[^\s.*>/\\]+$")
    """The stream of the chunks."""
    max_concurrent: int = Field(default=3, ge=1)
    """Tables that penstock reads at a time."""
    slots: int = Field(default=2, ge=1)
    """Connections that read one table."""
    chunk_rows: int = Field(default=10_000, ge=1)
    """Most rows of a chunk."""
    chunk_bytes: Size = Field(default=512 * 2**10, ge=4096)
    """Most bytes of a chunk, never more than the server accepts in a message; a larger row has a
    chunk of its own."""
    where: bool = False
    """Whether requests may have a condition, which is SQL."""
    compression: Literal["none", "zstd"] = "none"
    """The compression of chunks."""
    rate: Size | None = Field(default=None, ge=1)
    """Most bytes of chunks a second, of all tables together; default: no limit."""
    row_rate: int | None = Field(default=None, ge=1)
    """Most rows a second, of all tables together; default: no limit."""
    max_age: Duration = Field(default=1800.0, ge=1)
    """Seconds for which the source keeps old versions of rows for one snapshot."""
    patience: Duration = Field(default=60.0, gt=0)
    """Seconds that a snapshot waits for a table's lock and for older transactions."""


class Spark(Settings):
    """The session that penstock makes."""

    master: str = "local[*]"
    """Spark's master."""
    trigger: Trigger = 0.0
    """Seconds between two micro-batches. 0: a micro-batch starts when the last one is done, and
    stays open for `epoch` if no transform needs rows. `realtime`: the same, and refuses settings
    that prevent this."""
    epoch: Duration = Field(default=3600.0, ge=1)
    """Seconds that a micro-batch stays open; between two micro-batches changes wait some 0.2 s."""
    mode: Annotated[Literal["auto", "rows"], BeforeValidator(_spark_mode)] = "auto"
    """`rows`: changes are always rows of Spark. `auto`: they are rows if there is a transform or
    `trigger` is an interval."""
    standby: Literal["cold", "warm"] = "cold"
    """Whether an instance that waits for another to end keeps a running Spark (`warm`)."""
    fork_server: bool = True
    """Whether Python workers are forks of one process (on one machine); if not, Spark starts each
    of them."""
    class_archive: bool | HomePath = Field(default=True, union_mode="left_to_right")
    """Where penstock keeps the classes that Spark loads, for the next start: in the user's cache
    (true), in this file (a path), or nowhere (false). penstock makes the file when the pipeline has
    little to do."""
    max_events: int = Field(default=50_000, ge=1)
    """Most changes of a micro-batch with a planned end, per backend; at least one page of each
    partition always passes. An open micro-batch needs no limit: it takes a page at a time."""
    max_bytes: Size = Field(default=16 * 2**20, ge=1)
    """Most bytes of such a micro-batch."""
    buffer: Size = Field(default=48 * 2**20, ge=1)
    """Bytes of each backend's log that penstock holds in memory; then the source keeps its log."""
    bind: str = ""
    """On a cluster, the address of penstock's servers for executors; default: that of Spark's
    driver."""
    port: int = Field(default=0, ge=0, le=65535)
    """On a cluster, the first port of these servers; each backend has one more. 0: free ports."""
    conf: dict[str, Annotated[str, BeforeValidator(_spark_text)]] = Field(default_factory=dict)
    """More of Spark's configuration, which overrides penstock's own."""


class Sharing(Settings):
    """The intervals and limits of one host of a processor."""

    renew: Seconds = 17.0
    """Between two renewals of held leases; the first renewal is after half of this."""
    acquire: Seconds = 13.0
    """Between two look-ups of all leases, for free and expired ones and for a fair share."""
    expire: Seconds = 60.0
    """A lease that has not changed for so long is taken from its owner."""
    min_partitions: int = Field(default=0, ge=0)
    """Least partitions that this host takes, whatever the share of the others is."""
    max_partitions: int = Field(default=0, ge=0)
    """Most partitions that this host takes; 0: no limit."""

    @model_validator(mode="after")
    def _intervals_fit(self) -> "Sharing":
        if self.expire < 2 * self.renew or self.expire < 2 * self.acquire:
            raise ValueError(
                "expire must be at least twice as long as renew and acquire: a lease would expire"
                " while its owner lives"
            )
        if self.max_partitions and self.min_partitions > self.max_partitions:
            raise ValueError("min_partitions is more than max_partitions")
        return self


class Deployment(Settings):
    """What every file names: 1..n backends, and where their state is kept."""

    name: Name = "penstock"
    """The pipeline's name in positions, metrics and logs. A renamed pipeline has no positions, and
    begins at the position that the source keeps."""
    backends: tuple[Backend, ...] = Field(min_length=1)
    state: HomePath = Field(default_factory=lambda data: state_folder(data["name"]))
    """The folder for data that the pipeline keeps between runs."""
    positions: str = Field(
        default_factory=lambda data: f"sqlite:///{data['state'].absolute()}/positions.db"
    )
    """The URL of the store of positions and leases; default: a file in `state`."""
    ops: Ops = Ops()

    @field_validator("backends")
    @classmethod
    def _share(cls, backends: tuple[Backend, ...]) -> tuple[Backend, ...]:
        types = [each.type for each in backends]
        return tuple(each.sharing(types.count(each.type)) for each in backends)


class Pipeline(Deployment):
    """One pipeline: 1..n backends, transforms over `changes`, one sink. With a map in a file of its
    own, `backends` are those that have tables there, as it was read last."""

    backends: tuple[Backend, ...]
    partitions: int = Field(default=1, ge=1, le=1024)
    """The number of hash partitions for backends without their own `partitions`."""
    transform: tuple[Transform, ...] = ()
    """SQL steps over the changes, in order."""
    sink: SinkChoice
    checkpoint: Checkpoint = Checkpoint()
    snapshot: Annotated[
        SnapshotSettings,
        BeforeValidator(lambda value: {"initial": True} if value == "initial" else value),
    ] = SnapshotSettings()
    spark: Spark = Spark()
    _own: tuple[Backend, ...] = PrivateAttr(())  # of the pipeline file itself
    _known: tuple[Backend, ...] = PrivateAttr(())  # and of its map
    _problems: tuple[str, ...] = PrivateAttr(())
    _broken: frozenset[str] = PrivateAttr(frozenset())

    @model_validator(mode="after")
    def _write_values(self) -> "Pipeline":
        """The sink's layout says how its sources write values."""
        if (layout := getattr(self.sink.settings, "layout", None)) is not None:
            wanted = plugin("layouts", layout).values
            if wanted != "typed":
                found = tuple(each.writing(wanted) for each in self.backends)
                object.__setattr__(self, "backends", found)
        return self

    @property
    def known_backends(self) -> tuple[Backend, ...]:
        """Those of the pipeline file and of its map, also without tables."""
        return self._known if self.has_live_map else self.backends

    @property
    def has_live_map(self) -> bool:
        """Whether its map is in a file of its own, and may be edited while it runs."""
        return bool(self.sink.map_file)

    def map_store(self) -> "MapStore | None":
        """That file, if there is one; does no I/O."""
        if not self.has_live_map:
            return None
        # (It has psycopg, which a pipeline without PostgreSQL may lack.)
        from penstock.config.map_store import MapStore

        return MapStore(Path(self.sink.map_file))

    @property
    def map_problems(self) -> tuple[str, ...]:
        """What is wrong in the file of the map: it is left out."""
        return self._problems

    def forgets(self, backend: str) -> bool:
        """Whether what the map lacks of a backend has left it: not where that may be a mistake."""
        return backend not in self._broken

    def renewed(self) -> "Pipeline":
        """The same with what the file of its map says now. Raises SettingsError, Unavailable."""
        if (store := self.map_store()) is None:
            return self
        with store:
            return self.mapped(store.content())

    def mapped(self, content: "MapContent") -> "Pipeline":
        """The same with this map; rows that are wrong there say what they said before."""
        before: Any = self.sink.settings
        content = content.over(before, [each.settings for each in self.backends])
        settings = before.model_copy(update={"map": content.entries})
        sink = self.sink.model_copy(update={"settings": settings})
        found, problems = {each.name: each for each in self._own}, [*content.problems]
        broken = {db for db, _, _ in content.broken}
        for data in content.backends:
            name, kind = data["name"], data["type"]
            model = plugin("feeds", kind).settings
            if name in found:
                problems.append(f"db {name}: the pipeline file has its sources, and not the map")
                continue
            try:
                found[name] = Backend(name=name, type=kind, settings=model.model_validate(data))
            except ValidationError as error:
                problems += [f"db {name}: {each.text}" for each in problems_of(error, model)]
                broken.add(name)
        wanted = sink.plug_in.tables
        assert wanted is not None
        backends = tuple(
            each.following(tables)
            for each in found.values()
            if (tables := tuple(wanted(settings, each.name)))
        )
        mapped = self.model_copy(update={"sink": sink, "backends": backends})
        mapped._problems, mapped._broken = tuple(problems), frozenset(broken)
        mapped._known = tuple(found.values())
        return mapped

    @property
    def is_open(self) -> bool:
        """Whether micro-batches stay open: no transform must see rows, and no interval is set."""
        spark = self.spark
        return not self.transform and spark.mode == "auto" and spark.trigger in (0, "realtime")

    @property
    def wants_snapshots(self) -> str:
        """The first setting by which it takes snapshots that are not asked for; "" if none is."""
        wishes = ["snapshot.initial"] if self.snapshot.initial else []
        for each in self.backends:
            for key, value in (("start", "snapshot"), ("on_gap", "resnapshot")):
                if getattr(each.settings, key, None) == value:
                    wishes.append(f"{key}: {value} of backend {each.name}")
        return next(iter(wishes), "")

    @property
    def needs_snapshots(self) -> bool:
        """Whether it is a fault that snapshots are refused: it takes them, or its consumers ask."""
        return bool(self.wants_snapshots) or self.sink.has_layout("bridge")

    def hash_partitions(self, backend: Backend) -> int:
        """How many its changes have."""
        return backend.partitions or self.partitions

    @model_validator(mode="after")
    def _has_backends(self) -> "Pipeline":
        # A sink that is wrong has no type, and is reported already.
        if not self.backends and not self.has_live_map and self.sink.type:
            raise ValueError("backends: there must be one, unless sink.map is sqlite:///FILE")
        return self

    @model_validator(mode="before")
    @classmethod
    def _is_not_shared(cls, data: Any) -> Any:
        if isinstance(data, dict) and "share" in data:
            raise ValueError(
                "share is no more: leave share and leases out. One host then runs the pipeline,"
                " from the same positions, and the others wait. Many machines under Spark are a"
                " Spark cluster (spark.master); many hosts without Spark are penstock process"
            )
        return data

    @model_validator(mode="after")
    def _follows_the_map(self) -> "Pipeline":
        """The backends of a sink of tables follow those of its map."""
        # A part that is wrong has no type, and is reported already.
        wanted = self.sink.plug_in.tables if self.sink.type else None
        if wanted is None or not all(each.type for each in self.backends):
            return self
        if self.transform:
            raise ValueError(
                f"transform is not for a sink of type {self.sink.type}: write `set` and `filter` of"
                " a table in its map"
            )
        backends = []
        self._own = self._known = self.backends
        for each in self.backends:
            kind: FeedPlugin = plugin("feeds", each.type)
            if kind.has_documents and getattr(self.sink.settings, "takes_documents", False):
                one, sink = with_documents(each, self.sink.settings)
                self.__dict__["sink"] = self.sink.model_copy(update={"settings": sink})
                backends.append(one)
                continue
            if not kind.has_lines:
                raise ValueError(
                    f"backend {each.name}: a sink of type {self.sink.type} takes the tables of"
                    f" backends of type postgres, not of {each.type}"
                )
            refuse_schema(each, self.sink.settings)
            tables = tuple(wanted(self.sink.settings, each.name))
            if not tables and not self.has_live_map:
                raise ValueError(f"backend {each.name} has no tables in sink.map")
            backends.append(each.following(tables))
        # Frozen: this is still its making.
        self.__dict__["backends"] = tuple(backends)
        return self

    @model_validator(mode="after")
    def _letters_pass_no_statement(self) -> "Pipeline":
        """Dead letters do not have what `transform` would mask, unless asked for."""
        settings = self.sink.settings
        if self.transform and getattr(settings, "letter_source", ...) is None:
            update = {"settings": settings.model_copy(update={"letter_source": False})}
            self.__dict__["sink"] = self.sink.model_copy(update=update)
        return self

    @model_validator(mode="after")
    def _rows(self) -> "Pipeline":
        spark = self.spark
        realtime = spark.trigger == "realtime"
        if self.transform and realtime:
            raise ValueError(
                "spark.trigger: realtime has no rows that a transform could see: leave the"
                " transform out, or use a duration as trigger"
            )
        if realtime and spark.mode != "auto":
            raise ValueError(
                "spark.trigger: realtime keeps micro-batches open, without rows: leave spark.mode"
                " out, or use a duration as trigger"
            )
        return self
