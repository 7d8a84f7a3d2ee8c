"""Why Spark did not start, for the operator: Spark's own answer is a trace of Java's."""

from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.spark.session.master import is_local

# What `SparkSession` says after `SparkContext` has given up on the master.
_STOPPED = "stopped SparkContext"
_NO_JVM = "JAVA_GATEWAY_EXITED"


def not_started(error: Exception, master: str) -> PenstockError:
    """What PySpark or py4j raised while a session was opened, as an error of ours: `Unavailable` if
    a master that answers later would help."""
    text = str(error)
    if _STOPPED in text and not is_local(master):
        return Unavailable(
            f"the Spark master {master} cannot be reached, or refused the application",
            hint="start it, or correct `spark.master` in the pipeline file;"
            " Spark's warnings in the log name every attempt",
        )
    if _NO_JVM in text:
        return SettingsError(
            f"Spark's JVM ended at its start, with the master {master}",
            hint="the log before this line says why: often `spark.master` is misspelled"
            " (local[*], spark://HOST:PORT, yarn, k8s://URL), or `spark.conf` asks for too much",
        )
    return SettingsError(
        f"Spark did not start with the master {master}: {_reason(text)}",
        hint="correct `spark.master` or `spark.conf` in the pipeline file",
    )


def _reason(text: str) -> str:
    """The line with Java's exception, without its class."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = next((line[2:] for line in lines if line.startswith(": ")), lines[0] if lines else "")
    return found.rpartition("Exception: ")[2][:300]
