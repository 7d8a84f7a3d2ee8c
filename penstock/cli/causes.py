"""What usually brings an error about, and what helps: of codes that users meet first, of those
whose message names no remedy, and of all gaps. `penstock explain` and the page show it."""

from collections.abc import Mapping

_MALFORMED = (
    "Bytes came that do not follow their format: another program writes there, or a version that "
    "differs.",
    "See whether the names in the file lead to what is meant; otherwise report a bug.",
)
_TAKEN = (
    "Another instance of the same name works, or this one was frozen for longer than its lease.",
    "Nothing: this one is on standby. Give it another `name` if it is another pipeline.",
)  # fmt: skip
_LEFT = (
    "`on_gap` decides whether the backend goes on; load what was lost by snapshots, then "
    "`penstock gaps FILE mend`."
)

# Code -> (cause, remedy).
CAUSES: Mapping[str, tuple[str, str]] = {
    "cli.java": (
        "Spark runs on Java 17 or later, and none is found at JAVA_HOME or on the PATH.",
        "apt install openjdk-17-jre-headless, or set JAVA_HOME.",
    ),
    "cli.ops-port": (
        "Another pipeline, or another program, listens at `ops.port` on this machine.",
        "Set another `ops.port`, or stop the other one.",
    ),
    "cli.ops-open": (
        "`ops.bind` is not loopback, and no token says who may read.",
        "Set `ops.token` and `ops.read_token`, or bind to 127.0.0.1.",
    ),
    "cli.pipeline-runs": (
        "A running instance has the positions of the pipeline.",
        "Stop it, and its standbys, before positions are changed.",
    ),
    "cli.no-ops-server": (
        "The pipeline does not run on this machine, or another file than this one started it.",
        "Start it, or give the URL of its ops server.",
    ),
    "cli.rejected": (
        "The ops server refused what was asked of it.",
        "Its answer says why; `ops.token` of the file must be that of the running pipeline.",
    ),
    "cli.webhook": (
        "The webhook was removed (403, 404, 410), takes another format (400), or is not reached "
        "from this machine.",
        "Make it anew, set `format` of the entry in `ops.notify`, or HTTPS_PROXY.",
    ),
    "cli.positions-local": (
        "A `sqlite:` or `memory:` store is this machine's: a standby elsewhere does not know the "
        "positions.",
        "Set `positions` to postgresql://, etcd://, mongodb:// or nats://.",
    ),
    "config.file-invalid": (
        "A key of the file is unknown, or its value is of another type. All mistakes are named at "
        "once.",
        "Correct them; `penstock init` writes a file with every key explained.",
    ),
    "config.file-unreadable": (
        "The file is not there, is a folder, or is not UTF-8 text.",
        "Give the path of a pipeline file; `penstock init KIND --to FILE` writes one.",
    ),
    "consumer.stream-missing": (
        "The name of the stream is another one, or the pipeline has not made it yet.",
        "Give `--stream` as `sink.stream` of the pipeline file has it, and start the pipeline "
        "once.",
    ),
    "consumer.malformed": _MALFORMED,
    "cosmos.container-missing": (
        "The container is not there: its name differs, or it is being made.",
        "Correct `database` and `container`; penstock goes on when it is there.",
    ),
    "cosmos.key-invalid": (
        "`key` is cut off, or is a connection string.",
        "Copy the primary key of the account's page Keys, or leave `key` out for a login by Entra "
        "ID.",
    ),
    "cosmos.range-gone": (
        "A range was split or merged, and the service does not list what it became yet.",
        "Nothing: penstock asks again. If it stays, the container was made anew.",
    ),
    "feeds.malformed": _MALFORMED,
    "feeds.unavailable": (
        "The memory feed was closed, as when its pipeline ends.",
        "Nothing.",
    ),
    "gap.slot-missing": ("The slot was dropped by somebody.", _LEFT),
    "gap.slot-lost": (
        "The server gave the slot up: it kept more log than max_slot_wal_keep_size, or nobody "
        "read it for idle_replication_slot_timeout.",
        _LEFT,
    ),
    "gap.slot-recreated": ("The slot was made anew, or another reader moved it.", _LEFT),
    "gap.publication-missing": ("The publication was dropped.", _LEFT),
    "gap.sink-went-back": (
        "The destination was restored from a backup, or a standby that lacked something was "
        "promoted.",
        "`on_gap` decides; `penstock reload` the tables.",
    ),
    "gap.other-system": (
        "The connection leads to another cluster, or to one made from a dump.",
        _LEFT,
    ),
    "gap.other-timeline": ("A standby that lacked the newest changes was promoted.", _LEFT),
    "gap.server-behind": ("The server's files are older than what was read: a backup.", _LEFT),
    "gap.diverged": ("The server's files are a backup that was written to since.", _LEFT),
    "gap.trimmed": ("The pipeline stood still for more than 24 hours.", _LEFT),
    "gap.shard-gone": ("A shard expired before all of it was read.", _LEFT),
    "gap.stream-gone": ("The table's stream was disabled, or the table deleted.", _LEFT),
    "gap.stream-replaced": ("The table's stream was disabled and enabled again.", _LEFT),
    "gap.container-gone": (
        "The container was deleted.",
        "Correct the names, or remove the backend.",
    ),
    "gap.container-replaced": (
        "The container was deleted and made again.",
        "Give the backend another `name`, which begins anew.",
    ),
    "gap.retention": ("The pipeline stood still for longer than the account's backup.", _LEFT),
    "gap.lineage-broken": ("Partitions came and went while nobody read.", _LEFT),
    "jetstream.delivery": (
        "The server, or the stream's settings, do not allow the `delivery` that the file wants.",
        "Upgrade nats-server to 2.12.1, set `allow_atomic` on the stream, or choose "
        "`deduplicated`.",
    ),
    "jetstream.no-stream": (
        "The stream was deleted, or its subjects were changed, while the pipeline runs.",
        "Make it again with the subjects of `sink.subject`; what was not stored is sent then.",
    ),
    "jetstream.other-source": (
        "Two sources have one name of backend and partition, and write to one stream.",
        "Give one of the backends another `name`, or another stream.",
    ),
    "jetstream.stream-loses": (
        "The stream may drop messages before consumers have read them: by age, size, count or "
        "interest.",
        "Choose limits that outlast the longest pause of a consumer, and retention `limits`.",
    ),
    "jetstream.unavailable": (
        "The server, its disk or its majority is away, or it is overloaded.",
        "See the server's log; penstock sends again, and nothing is lost.",
    ),
    "leases.lease-lost": _TAKEN,
    "mongodb.malformed": _MALFORMED,
    "mongodb.server": (
        "The server's version or topology was not tried, or a setting of it costs history.",
        "The text says which; `penstock prove mongodb://...` tries the contract on it.",
    ),
    "nats.connection-lost": (
        "The server was stopped, or the network between broke.",
        "Nothing: penstock connects again. Look at the server's log if it comes again.",
    ),
    "nats.malformed": _MALFORMED,
    "nats.no-answer": (
        "Nobody subscribes to the subject: JetStream is off, or the account may not ask for it.",
        "Start nats-server with --jetstream, and see the account's permissions.",
    ),
    "nats.unreachable": (
        "No server listens at the URL, or a firewall is between.",
        "Start it, or correct `sink.url`.",
    ),
    "poison.malformed": (
        "Another program wrote into the stream of dead letters.",
        "Remove the message; letters are penstock's alone.",
    ),
    "postgres.connection-broke": (
        "The server was restarted, failed over, or ended the connection.",
        "Nothing: penstock connects again and goes on after what was stored.",
    ),
    "postgres.malformed": _MALFORMED,
    "postgres.no-room": (
        "All replication slots, wal senders or connections of the server are used.",
        "Raise max_replication_slots and max_wal_senders (a restart), or drop slots that nobody "
        "reads.",
    ),
    "postgres.publication-missing": (
        "`publication` names none that the database has.",
        "Correct the name, or CREATE PUBLICATION ... FOR TABLE ... as the tables' owner.",
    ),
    "postgres.role": (
        "The role may log in, and not read the log.",
        "ALTER ROLE ... REPLICATION as a superuser; on a managed service its own way.",
    ),
    "postgres.server-new": (
        "The server's version is newer than those that the tests run.",
        "`penstock prove postgresql://...` tries the contract on it.",
    ),
    "postgres.slot-given-up": (
        "The server has a limit, beyond which it drops what the slot keeps: that is what a limit "
        "is for.",
        "Nothing, if the longest outage that you expect fits; else make it larger.",
    ),
    "postgres.slot-in-use": (
        "Another process reads the slot: an instance that still runs, or another program.",
        "Stop it, or set another `slot`.",
    ),
    "postgres.slot-missing": (
        "A slot is made at the first start; a snapshot or a job came before it.",
        "Start the pipeline first, or make the slot by pg_create_logical_replication_slot.",
    ),
    "postgres.wal-level": (
        "The server's log has too little for logical decoding.",
        "ALTER SYSTEM SET wal_level = logical; and restart the server.",
    ),
    "processor.lease-lost": _TAKEN,
    "processor.unavailable": ("The processor was closed.", "Nothing."),
    "reading.lease-lost": _TAKEN,
    "reading.position-lost": (
        "The source no longer has what comes after the saved position.",
        "The gap's own code, `gap...`, says why and what to do.",
    ),
    "service.lease-lost": _TAKEN,
    "sinks.in-memory": (
        "`type: memory` is for trials.",
        "Choose another sink for changes that shall last.",
    ),
    "snapshots.lease-lost": _TAKEN,
    "snapshots.malformed": _MALFORMED,
    "snapshots.stream-unfit": (
        "The stream INIT exists with other subjects, or drops chunks before they are read.",
        "Delete it, so that penstock makes it, or set what the text names.",
    ),
    "spark.query-failed": (
        "A statement of a `transform`, a task or a worker failed; the log has Spark's reason.",
        "penstock starts the query again; a statement that always fails must be corrected.",
    ),
    "spark.unavailable": (
        "Spark's JVM or a worker ended: out of memory, killed, or the machine is too busy.",
        "Nothing, if it comes once; else give it more memory (`spark.conf`).",
    ),
    "sqlite.row-refused": (
        "A constraint or a trigger of the table refuses the row.",
        "Change the table, then `penstock dead-letters replay`.",
    ),
    "tables.other-state": (
        "Two commands changed one table at once.",
        "Nothing: look again with `penstock tables`, and repeat what is still wanted.",
    ),
    "tables.recurring": (
        "The same error came again and again while the destination answered.",
        "The text has the destination's words; correct the table, then `penstock tables resume`.",
    ),
    "testing.refused": ("A test's own error.", "Nothing."),
    "testing.unavailable": (
        "A service did not become ready in the time that a check waits.",
        "Try again, or look at the service.",
    ),
    "typed.malformed": _MALFORMED,
}
