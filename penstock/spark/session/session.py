"""The Spark session of the service: opened over a JVM that starts meanwhile, and closed."""

import logging
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.spark.datasource import register
from penstock.spark.session.jvm import Jvm
from penstock.spark.session.launch import is_local
from penstock.spark.session.plan import SessionPlan

# What `SparkSession` says after `SparkContext` has given up on the master.
_STOPPED = "stopped SparkContext"
_NO_JVM = "JAVA_GATEWAY_EXITED"

# What py4j logs, with a traceback, when the JVM is gone.
_PY4J_FAILED = "Exception while sending command."

# There is one session in a process.
_jvm: Jvm | None = None


def open_session(plan: SessionPlan, started: Jvm | None = None) -> SparkSession:
    """A new session, over the JVM that was `started` for this plan, or a new one. Raises
    Unavailable without a connection to the master, SettingsError for what else keeps Spark from
    starting."""
    global _jvm
    try:
        _jvm = started or Jvm(plan)
        _jvm.start_forks()
        with _jvm.placed():
            if _jvm.process is not None:
                _connect(_jvm)
            builder = SparkSession.builder
            for key, value in _jvm.settings.items():
                builder = builder.config(key, value)
            spark = builder.getOrCreate()
    except (Py4JError, PySparkException, OSError) as error:
        refusal = _not_started(error, plan.master)  # asks the JVM for the error's text
        _close_jvm()
        raise refusal from None
    # PySpark's auto-discovery lists folders, and does not see an editable installation.
    register(spark)
    return spark


def _connect(jvm: Jvm) -> None:
    """Has PySpark use this JVM. Raises what PySpark does for one that ended at its start."""
    if (found := jvm.gateway()) is None:
        raise PySparkRuntimeError(errorClass=_NO_JVM, messageParameters={})
    port, secret = found
    os.environ |= {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    try:
        gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
    gateway.proc = jvm.process
    SparkContext._gateway, SparkContext._jvm = gateway, gateway.jvm


def archive_at_idle() -> None:
    """Has the class archive made, if the JVM found none: from what it has loaded until now. Takes a
    JVM of low priority for half a minute; returns at once."""
    if _jvm is not None and _jvm.archive is not None and _jvm.archive.is_wanted:
        home, classpath = map(SparkContext.getSystemProperty, ("java.home", "java.class.path"))
        _jvm.archive.make(Path(home) / "bin" / "java", classpath)


def make_active(spark: SparkSession) -> None:
    """For this thread, when another one opened the session: Spark looks up Python's data sources
    in the thread's active session, and not in the default one."""
    java: Any = spark._jvm
    SparkSession._get_j_spark_session_class(java).setActiveSession(spark._jsparkSession)


def close_session(spark: SparkSession) -> None:
    """Stops Spark and its JVM; a JVM that is already gone is no error."""
    with suppress(Py4JError, OSError):
        spark.stop()
    _close_jvm()


def kill_jvm() -> None:
    """Ends a JVM whose session another thread is opening: that fails. Does nothing while the JVM's
    process is not known yet. py4j's traceback about that is not logged."""
    gateway: Any = SparkContext._gateway
    process = gateway.proc if gateway is not None else _jvm.process if _jvm is not None else None
    if process is not None:
        logging.getLogger().addFilter(lambda record: record.msg != _PY4J_FAILED)
        process.kill()


def _close_jvm() -> None:
    global _jvm
    if (gateway := SparkContext._gateway) is not None:
        with suppress(Py4JError, OSError):
            gateway.shutdown()
        # The JVM ends when its standard input does; a later session starts a new one.
        gateway.proc.stdin.close()
        SparkContext._gateway = SparkContext._jvm = None
    if _jvm is not None:
        _jvm.close()
        _jvm = None


def _not_started(error: Exception, master: str) -> PenstockError:
    """What PySpark or py4j raised while a session was opened, as an error of ours: `Unavailable` if
    a master that answers later would help. Spark's own answer is a trace of Java's."""
    text = str(error)
    if _STOPPED in text and not is_local(master):
        return Unavailable(
            f"the Spark master {master} cannot be reached, or refused the application",
            "spark.master-unreachable",
            hint="start it, or correct `spark.master` in the pipeline file;"
            " Spark's warnings in the log name every attempt",
        )
    if _NO_JVM in text and (missing := _missing_java()):
        return SettingsError(
            missing, "spark.java-missing",
            hint="install a Java runtime 17 or newer: apt-get install openjdk-17-jre-headless;"
            " or correct JAVA_HOME",
        )  # fmt: skip
    if _NO_JVM in text:
        return SettingsError(
            f"Spark's JVM ended at its start, with the master {master}",
            "spark.not-started",
            hint="the log before this line says why: often `spark.master` is misspelled"
            " (local[*], spark://HOST:PORT, yarn, k8s://URL), or `spark.conf` asks for too much",
        )
    return SettingsError(
        f"Spark did not start with the master {master}: {_reason(text)}",
        "spark.not-started",
        hint="correct `spark.master` or `spark.conf` in the pipeline file",
    )


def _missing_java() -> str:
    """What is wrong, where there is no Java at all: Spark looks at JAVA_HOME, then at the PATH."""
    if home := os.environ.get("JAVA_HOME"):
        java = Path(home, "bin", "java")
        return "" if java.exists() else f"JAVA_HOME is {home}, and {java} is not there"
    return "" if shutil.which("java") else "there is no java on the PATH"


def _reason(text: str) -> str:
    """The line with Java's exception, without its class."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = next((line[2:] for line in lines if line.startswith(": ")), lines[0] if lines else "")
    return found.rpartition("Exception: ")[2][:300]
