"""What usually brings an error about, and what helps: of codes that users meet first, of those
whose message names no remedy, and of all gaps. `penstock explain` and the page show it."""

from collections.abc import Mapping

_MALFORMED = (
    "The bytes do not follow their format: another program, or another version, wrote them.",
    "Verify the names in the file; if they are right, report a bug.",
)
_TAKEN = (
    "Another instance of the same name runs, or this instance was frozen for longer than its "
    "lease.",
    "Nothing: this instance is on standby. If it is another pipeline, give it another `name`.",
)  # fmt: skip
_LEFT = (
    "`on_gap` decides whether the backend continues. Load the lost rows by snapshots, then "
    "`penstock gaps FILE mend`."
)

# Code -> (cause, remedy).
CAUSES: Mapping[str, tuple[str, str]] = {
    "cli.java": (
        "Spark needs Java 17 or later, and penstock finds none at JAVA_HOME or on the PATH.",
        "apt install openjdk-17-jre-headless, or set JAVA_HOME.",
    ),
    "cli.ops-port": (
        "Another pipeline, or another program, listens at `ops.port` on this machine.",
        "Set another `ops.port`, or stop the other program.",
    ),
    "cli.ops-open": (
        "`ops.bind` is not loopback, and no token restricts reading.",
        "Set `ops.token` and `ops.read_token`, or bind to 127.0.0.1.",
    ),
    "cli.pipeline-runs": (
        "A running instance has the positions of the pipeline.",
        "Stop the instance and its standbys before you change positions.",
    ),
    "cli.no-ops-server": (
        "The pipeline does not run on this machine, or was started with another file.",
        "Start the pipeline, or give the URL of its ops server.",
    ),
    "cli.rejected": (
        "The ops server refused the request.",
        "The answer has the reason. `ops.token` of the file must be that of the running pipeline.",
    ),
    "cli.webhook": (
        "The webhook was removed (403, 404, 410), expects another format (400), or cannot be "
        "reached from this machine.",
        "Make the webhook anew, set `format` of the entry in `ops.notify`, or HTTPS_PROXY.",
    ),
    "cli.positions-local": (
        "A `sqlite:` or `memory:` store is on this machine, so a standby on another machine does "
        "not have the positions.",
        "Set `positions` to postgresql://, etcd://, mongodb:// or nats://.",
    ),
    "config.file-invalid": (
        "A key of the file is unknown, or its value is of another type. The error names all "
        "mistakes.",
        "Correct the keys; `penstock init` writes a file with every key explained.",
    ),
    "config.file-unreadable": (
        "The file does not exist, is a folder, or is not UTF-8 text.",
        "Give the path of a pipeline file; `penstock init KIND --to FILE` writes one.",
    ),
    "consumer.stream-missing": (
        "The name of the stream is another one, or the pipeline has not made it yet.",
        "Give `--stream` the value of `sink.stream` in the pipeline file, and start the pipeline "
        "once.",
    ),
    "consumer.malformed": _MALFORMED,
    "cosmos.container-missing": (
        "The container does not exist: its name differs, or it is being made.",
        "Correct `database` and `container`; penstock continues when the container exists.",
    ),
    "cosmos.key-invalid": (
        "`key` is cut off, or is a connection string.",
        "Copy the primary key of the account's page Keys, or leave `key` out for a login by Entra "
        "ID.",
    ),
    "cosmos.range-gone": (
        "A range was split or merged, and the service does not list the new ranges yet.",
        "Nothing: penstock asks again. If the error stays, the container was made anew.",
    ),
    "feeds.malformed": _MALFORMED,
    "feeds.unavailable": (
        "The memory feed was closed, as when its pipeline ends.",
        "Nothing.",
    ),
    "gap.slot-missing": ("A user or a program dropped the slot.", _LEFT),
    "gap.slot-lost": (
        "The server gave the slot up: it kept more log than max_slot_wal_keep_size, or no reader "
        "used it for idle_replication_slot_timeout.",
        _LEFT,
    ),
    "gap.slot-recreated": ("The slot was made anew, or another reader moved it.", _LEFT),
    "gap.publication-missing": ("The publication was dropped.", _LEFT),
    "gap.sink-went-back": (
        "The destination was restored from a backup, or a standby that lacked changes was "
        "promoted.",
        "`on_gap` decides; `penstock reload` the tables.",
    ),
    "gap.other-system": (
        "The connection leads to another cluster, or to a cluster made from a dump.",
        _LEFT,
    ),
    "gap.other-timeline": ("A standby that lacked the newest changes was promoted.", _LEFT),
    "gap.server-behind": (
        "The server's files are a backup, older than the changes that were read.",
        _LEFT,
    ),
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
        "Give the backend another `name`; it then begins anew.",
    ),
    "gap.retention": ("The pipeline stood still for longer than the account's backup.", _LEFT),
    "gap.lineage-broken": ("Partitions came and went while no reader ran.", _LEFT),
    "jetstream.delivery": (
        "The server, or the stream's settings, do not allow the file's `delivery`.",
        "Upgrade nats-server to 2.12.1, set `allow_atomic` on the stream, or choose "
        "`deduplicated`.",
    ),
    "jetstream.no-stream": (
        "The stream was deleted, or its subjects were changed, while the pipeline runs.",
        "Make the stream again with the subjects of `sink.subject`; penstock then sends the "
        "other changes.",
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
        "The server, its disk or its majority is away, or the server is overloaded.",
        "See the server's log; penstock sends again, and nothing is lost.",
    ),
    "leases.lease-lost": _TAKEN,
    "mongodb.malformed": _MALFORMED,
    "mongodb.server": (
        "We did not test the server's version or topology, or one of its settings costs history.",
        "The message names the cause; `penstock prove mongodb://...` tests the server.",
    ),
    "nats.connection-lost": (
        "The server was stopped, or the network failed.",
        "Nothing: penstock connects again. If the error returns, read the server's log.",
    ),
    "nats.malformed": _MALFORMED,
    "nats.no-answer": (
        "The subject has no subscriber: JetStream is off, or the account may not use it.",
        "Start nats-server with --jetstream, and see the account's permissions.",
    ),
    "nats.unreachable": (
        "No server listens at the URL, or a firewall blocks the connection.",
        "Start the server, or correct `sink.url`.",
    ),
    "poison.malformed": (
        "Another program wrote into the stream of dead letters.",
        "Remove the message; only penstock may write to this stream.",
    ),
    "postgres.connection-broke": (
        "The server was restarted, failed over, or ended the connection.",
        "Nothing: penstock connects again, and continues after the stored changes.",
    ),
    "postgres.malformed": _MALFORMED,
    "postgres.no-room": (
        "All replication slots, wal senders or connections of the server are used.",
        "Raise max_replication_slots and max_wal_senders (a restart), or drop slots without a "
        "reader.",
    ),
    "postgres.publication-missing": (
        "The database does not have the publication that `publication` names.",
        "Correct the name, or CREATE PUBLICATION ... FOR TABLE ... as the tables' owner.",
    ),
    "postgres.role": (
        "The role may log in, but not read the log.",
        "ALTER ROLE ... REPLICATION as a superuser; on a managed service the service's own "
        "command.",
    ),
    "postgres.server-new": (
        "The server's version is newer than those that the tests run.",
        "`penstock prove postgresql://...` tests the server.",
    ),
    "postgres.slot-given-up": (
        "The server has a limit, beyond which it drops the log that the slot keeps.",
        "Nothing, if the longest outage that you expect fits; otherwise raise the limit.",
    ),
    "postgres.slot-in-use": (
        "Another process reads the slot: an instance that still runs, or another program.",
        "Stop that process, or set another `slot`.",
    ),
    "postgres.slot-missing": (
        "A pipeline makes the slot at its first start; a snapshot or a job came before it.",
        "Start the pipeline first, or make the slot by pg_create_logical_replication_slot.",
    ),
    "postgres.wal-level": (
        "The server's log has too little information for logical decoding.",
        "ALTER SYSTEM SET wal_level = logical; and restart the server.",
    ),
    "processor.lease-lost": _TAKEN,
    "processor.unavailable": ("The processor was closed.", "Nothing."),
    "reading.lease-lost": _TAKEN,
    "reading.position-lost": (
        "The source no longer has the changes after the saved position.",
        "The gap's own code, `gap...`, has the cause and the remedy.",
    ),
    "service.lease-lost": _TAKEN,
    "sinks.in-memory": (
        "`type: memory` is for trials.",
        "Choose another sink to keep changes.",
    ),
    "snapshots.lease-lost": _TAKEN,
    "snapshots.malformed": _MALFORMED,
    "snapshots.stream-unfit": (
        "The stream INIT exists with other subjects, or drops chunks before they are read.",
        "Delete the stream, so that penstock makes it, or change what the message names.",
    ),
    "spark.query-failed": (
        "A statement of a `transform`, a task or a worker failed; the log has Spark's reason.",
        "penstock starts the query again. Correct a statement that always fails.",
    ),
    "spark.unavailable": (
        "Spark's JVM or a worker ended: out of memory, killed, or the machine is too busy.",
        "Nothing, if the error comes once; otherwise give Spark more memory (`spark.conf`).",
    ),
    "sqlite.row-refused": (
        "A constraint or a trigger of the table refuses the row.",
        "Change the table, then `penstock dead-letters replay`.",
    ),
    "tables.other-state": (
        "Two commands changed one table at once.",
        "Read the state with `penstock tables`, and repeat your command if necessary.",
    ),
    "tables.recurring": (
        "The same error came again and again while the destination answered.",
        "The message has the destination's text. Correct the table, then `penstock tables resume`.",
    ),
    "testing.refused": ("A test's own error.", "Nothing."),
    "testing.unavailable": (
        "A service did not become ready in the time that a check waits.",
        "Try again, or examine the service.",
    ),
    "typed.malformed": _MALFORMED,
}
