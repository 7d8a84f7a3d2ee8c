"""What must hold on this machine before a pipeline can run; feeds and sinks check the rest."""

import errno
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from penstock.cli.options import OpsClient
from penstock.config import Deployment, Ops, Pipeline
from penstock.feeds import KnowsReader
from penstock.leases import Lease, open_store
from penstock.leases.kinds import NameCheck, verify_kind
from penstock.model.errors import LeaseLost, PenstockError
from penstock.model.finding import Finding, failed, finding
from penstock.native import describe, library
from penstock.process.plugins import to_install
from penstock.processor.settings import ProcessorFile
from penstock.sinks.subject import parse_template
from penstock.spark.session.launch import is_local

_JAVA = 17
_OF_ONE_MACHINE = ("sqlite", "memory")  # schemes of positions
_PATIENCE = 10.0  # seconds to connect to a master
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_GET_JAVA = f"install a Java runtime {_JAVA} or newer: apt-get install openjdk-17-jre-headless"


def check_machine(pipeline: Pipeline, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Everything about this machine, in the order a start needs it."""
    yield check_java(environment)
    yield check_spark()
    yield from check_master(pipeline.spark.master)
    yield check_native()
    yield from check_class_archive(environment)
    yield from check_transform(pipeline)
    yield from check_partitions(pipeline)
    yield from check_shards(pipeline)
    yield from check_sharing(pipeline)
    yield from check_host(pipeline)


def check_host(pipeline: Deployment) -> Iterator[Finding]:
    """What a service needs without Spark."""
    yield from check_package()
    yield check_state(pipeline.state)
    stored = check_positions(pipeline.positions)
    yield stored
    if stored.level == "ok":
        yield from check_name(pipeline)
    yield from check_followed_positions(pipeline)
    for port in (pipeline.ops.port, *pipeline.ops.extra_ports):
        yield check_port(pipeline.ops.bind, port, pipeline.name)
    yield from check_access(pipeline.ops)


def check_access(ops: Ops) -> Iterator[Finding]:
    """Who may ask from other machines."""
    if ops.bind not in ("127.0.0.1", "::1", "localhost") and ops.read_token is None:
        yield finding(
            "warning",
            "ops", f"bound to {ops.bind}: any client that reaches it may read what it shows",
            "set ops.token and ops.read_token, or put a proxy with a login before it",
            code="cli.ops-open",
        )  # fmt: skip


def check_package() -> Iterator[Finding]:
    """The package index has another project named penstock, whose modules have our names."""
    with suppress(PackageNotFoundError):
        yield finding(
            "warning",
            "package",
            f"penstock {version('penstock')} is installed besides penstock-cdc: files of one have"
            " replaced files of the other",
            "pip uninstall penstock penstock-cdc, then pip install penstock-cdc",
            code="cli.package",
        )


def check_java(environment: Mapping[str, str]) -> Finding:
    """Spark's JVM: JAVA_HOME first, then the PATH, as Spark looks for it."""
    home = environment.get("JAVA_HOME")
    path = environment.get("PATH", os.defpath)
    found = str(Path(home, "bin", "java")) if home else shutil.which("java", path=path)
    if not found:
        return finding("error", "java", "there is no java on the PATH", _GET_JAVA, code="cli.java")
    try:
        answer = subprocess.run(  # noqa: S603 - the java that Spark will run
            [found, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        remedy = f"correct JAVA_HOME, or {_GET_JAVA}" if home else _GET_JAVA
        return finding(
            "error", "java", f"{found} does not run: {type(error).__name__}", remedy,
            code="cli.java",
        )  # fmt: skip
    if (version := _VERSION.search(answer.stderr + answer.stdout)) is None:
        return finding("error", "java", f"{found} reports no version", _GET_JAVA, code="cli.java")
    if int(version[1]) < _JAVA:
        return finding(
            "error", "java", f"{found} is version {version[1]}, too old for Spark", _GET_JAVA,
            code="cli.java",
        )  # fmt: skip
    return finding("ok", "java", f"version {version[1]}, {found}")


def check_spark() -> Finding:
    """PySpark is an extra; nothing is imported."""
    if find_spec("pyspark") is None:
        return finding(
            "error", "spark", "PySpark is not installed", f"pip install '{to_install('spark')}'",
            code="cli.spark",
        )  # fmt: skip
    return finding("ok", "spark", "PySpark is installed")


def check_master(master: str) -> Iterator[Finding]:
    """A standalone master takes connections; with several, one of them does."""
    _, scheme, hosts = master.rpartition("spark://")
    if not scheme:
        return
    problem = "no port"
    for each in hosts.split(","):
        host, _, port = each.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
        except (OSError, ValueError, OverflowError) as error:
            problem = str(error)
        else:
            yield finding("ok", "spark master", f"{each} takes connections")
            return
    remedy = "start it, or correct spark.master in the pipeline file"
    yield finding(
        "error", "spark master", f"{master} cannot be reached: {problem}", remedy,
        code="cli.spark-master",
    )  # fmt: skip


def check_native() -> Finding:
    """The compiled library is optional: its absence costs speed, nothing else."""
    if library() is None:
        return finding(
            "warning", "native", f"the native library is {describe()}",
            "install a C compiler (gcc libc6-dev), then penstock again", code="cli.native",
        )  # fmt: skip
    return finding("ok", "native", "the native library is used")


def check_class_archive(environment: Mapping[str, str]) -> Iterator[Finding]:
    """The variable of earlier versions means nothing any more."""
    if "PENSTOCK_CLASS_ARCHIVE" in environment:
        yield finding(
            "warning", "class archive", "PENSTOCK_CLASS_ARCHIVE is not read any more",
            "unset it; spark.class_archive says where the archive is, and false that there is none",
            code="cli.class-archive",
        )  # fmt: skip


def check_transform(pipeline: Pipeline) -> Iterator[Finding]:
    """On a cluster, statements see changes that cannot be decoded, and can drop them."""
    if not pipeline.transform or is_local(pipeline.spark.master):
        return
    yield finding(
        "warning", "transform",
        "on a cluster it sees changes that cannot be decoded: a dropped one gets no dead"
        " letter", "let them through: WHERE operation = 'ERROR' OR ...", code="cli.transform",
    )  # fmt: skip


def check_partitions(pipeline: Pipeline) -> Iterator[Finding]:
    """Hash partitions that no subject has, or a subject that has them without any."""
    if (server := pipeline.sink.server()) is None:
        return
    count = max(pipeline.hash_partitions(backend) for backend in pipeline.backends)
    used = "{partition}" in server.subject
    if used and count == 1:
        yield finding(
            "warning", "partitions",
            "there is one hash partition: {partition} is 0 in every subject",
            "set `partitions`; the source's partition is {source_partition}",
            code="cli.one-hash-partition",
        )  # fmt: skip
    elif count > 1 and not used and not pipeline.transform:
        yield finding(
            "warning", "partitions",
            f"there are {count} hash partitions, and the subject does not have them",
            "put {partition} into sink.subject, or leave `partitions` out",
            code="cli.hash-partitions",
        )  # fmt: skip


def check_shards(pipeline: Pipeline) -> Iterator[Finding]:
    """Exactly once needs subjects that tell the source's partitions apart: see `delivery.md`."""
    server = pipeline.sink.server()
    if server is None or server.delivery not in ("auto", "exactly-once"):
        return
    needed = {"backend"} if len(pipeline.backends) > 1 else set()
    if any(backend.feed().polled for backend in pipeline.backends):
        needed.add("source_partition")
    if missing := [f"{{{name}}}" for name in sorted(needed - parse_template(server.subject).fixed)]:
        yield finding(
            "warning" if server.delivery == "auto" else "error",
            "subjects",
            "several partitions of the source write to the same subjects: deduplicated by"
            " message ids, not exactly once",
            f"put {' and '.join(missing)} into sink.subject, each in a token of its own",
            code="cli.subjects",
        )


def check_state(state: Path) -> Finding:
    """The state folder, or the nearest folder above it that exists, is writable."""
    there = next(
        folder for folder in (state.absolute(), *state.absolute().parents) if folder.exists()
    )
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        made = "" if there == state.absolute() else ", will be made"
        return finding("ok", "state", f"{state}{made}")
    return finding(
        "error", "state", f"{there} is not a writable folder", "choose another `state`",
        code="cli.state",
    )  # fmt: skip


def check_positions(url: str) -> Finding:
    """The positions store opens and takes a row."""
    try:
        with closing(open_store(url)) as store:
            store.delete(store.put(store.get("penstock.check") or Lease(name="penstock.check")))
    except LeaseLost:
        pass  # another check at the same time: it could write
    except PenstockError as error:
        return failed("positions", error)
    if url.startswith("memory:"):
        return finding(
            "warning", "positions",
            "kept in memory: a restart resumes at the position that the source keeps",
            "write positions: sqlite:///FILE", code="cli.positions-in-memory",
        )  # fmt: skip
    return finding("ok", "positions", "writable")


def check_name(deployment: Deployment) -> Iterator[Finding]:
    """No row of its name is of another kind of owner, and no pipeline of a processor's name runs.
    Looks for some seconds whether one does that holds a lease."""
    with closing(open_store(deployment.positions)) as store:
        try:
            if isinstance(deployment, ProcessorFile):
                deployment.verify_name()
                check = NameCheck(store, deployment.name)
                while not check.attempt():
                    time.sleep(1.0)
            else:
                verify_kind(store.list(f"{deployment.name}/"), "pipeline")
        except PenstockError as error:
            yield failed("name", error)


def check_sharing(pipeline: Pipeline) -> Iterator[Finding]:
    """A store that only this machine has, where the source does not keep a second reader away."""
    anyone = [b.name for b in pipeline.backends if not isinstance(b.feed(), KnowsReader)]
    if anyone and pipeline.positions.partition(":")[0] in _OF_ONE_MACHINE:
        leases = pipeline.sink.leases() is not None
        apart = "only the sink can keep the two apart" if leases else "both would write"
        yield finding(
            "warning", "positions",
            f"on this machine only, and anyone may read {', '.join(anyone)}: an instance on"
            f" another machine has other positions, and {apart}",
            "for several machines set positions: postgresql://..., nats://..., etcd://... or"
            " mongodb://...", code="cli.positions-local",
        )  # fmt: skip


def check_followed_positions(pipeline: Deployment) -> Iterator[Finding]:
    """Positions in a MongoDB database that a backend follows."""
    if not pipeline.positions.startswith(("mongodb://", "mongodb+srv://")):
        return
    from penstock.leases.mongodb import NAME, database_of

    database = database_of(pipeline.positions)
    for backend in pipeline.backends:
        settings: Any = backend.settings
        if backend.type == "mongodb" and settings.database in ("*", database):
            yield finding(
                "warning",
                "positions",
                f"{database}.{NAME} is in a database that backend {backend.name} follows:"
                " it is left out of the stream, which reads each save in the oplog",
                "give positions a database of their own: mongodb://.../penstock",
                code="cli.positions-followed",
            )


def check_port(bind: str, port: int, pipeline: str) -> Finding:
    """The ops server can listen; or does already, because the pipeline runs."""
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((bind, port))
    except OSError as error:
        remedy = "choose another ops.port, or 0 for a free one"
        if error.errno == errno.EADDRINUSE and _runs(bind, port, pipeline):
            return finding(
                "ok", "ops", f"this pipeline is running, and answers on port {port};"
                " one that is started now is on standby",
            )  # fmt: skip
        if error.errno == errno.EADDRINUSE:
            remedy = f"is another pipeline running already? Otherwise {remedy}"
        return finding(
            "error", "ops", f"can't listen on {bind}:{port}: {error.strerror}", remedy,
            code="cli.ops-port",
        )  # fmt: skip
    return finding("ok", "ops", f"port {port} is free" if port else "any port")


def _runs(bind: str, port: int, pipeline: str) -> bool:
    """Whether it is the ops server of this very pipeline that has the port."""
    answer = OpsClient(bind, port).ask("/")
    return bool(answer.get("penstock")) and answer.get("pipeline") == pipeline
