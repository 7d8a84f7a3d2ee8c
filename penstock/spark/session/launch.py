"""A SPARK_HOME of our own, whose `spark-submit` starts the JVM at once.

Spark's own starts a JVM that prints the command of a second one. For a local session that command
is always the same, so we write it down (a test compares). Whatever only Spark's launcher
understands (a configuration folder, a class path of the user's) is left to it. And what a master's
name says: whether it is this machine.
"""

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

# What `JavaModuleOptions` of Spark adds; without its incubating vector module, which only MLlib
# uses, and which makes every start print a warning.
_OPENED = (
    "java.base/java.lang", "java.base/java.lang.invoke", "java.base/java.lang.reflect",
    "java.base/java.io", "java.base/java.net", "java.base/java.nio", "java.base/java.util",
    "java.base/java.util.concurrent", "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref", "java.base/sun.nio.ch", "java.base/sun.nio.cs",
    "java.base/sun.security.action", "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)  # fmt: skip
MODULES = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENED),
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)

# The jars that most classes come from at a start (by -Xlog:class+load), by how their names begin.
_FIRST = (
    "spark-catalyst", "scala-library", "spark-core", "scala-reflect", "spark-sql", "log4j-",
    "jackson-", "hadoop-client", "arrow-", "spark-", "netty-",
)  # fmt: skip

# MLlib registers functions of its own in every session, by way of Scala's reflection: a quarter of
# the JVM's CPU until the first event. No source, no sink and no SQL of a transform can use them.
_UNUSED = "spark-mllib_"

_LOCAL = re.compile(r"local(\[(?P<threads>\*|\d+)(?P<failures>\s*,\s*\d+)?\])?")

# What Spark's launcher reads and we do not.
_ENVIRONMENT = (
    "SPARK_CONF_DIR", "SPARK_SUBMIT_OPTS", "SPARK_DIST_CLASSPATH", "SPARK_DRIVER_MEMORY",
    "SPARK_MEM", "SPARK_DAEMON_MEMORY", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "PYSPARK_SUBMIT_ARGS",
)  # fmt: skip
_CONF = (
    "spark.driver.extraClassPath", "spark.driver.defaultExtraClassPath",
    "spark.driver.extraLibraryPath", "spark.driver.defaultJavaOptions", "spark.submit.deployMode",
)  # fmt: skip


def make_home(folder: Path, conf: Mapping[str, str]) -> Path:
    """Makes a SPARK_HOME at `folder`, for a local session with the settings `conf`.

    It has no pyspark.zip, which comes first on every worker's path and has no compiled modules:
    each of the seven kinds of worker would compile pyspark anew at its start, half a second each.
    Without it they import the installed package.
    """
    package = _package()
    if folder.exists():
        return folder
    folder.mkdir(parents=True)
    for part in ("jars", "sbin"):
        (folder / part).symlink_to(package / part)
    if (java := our_java(conf)) is None:
        (folder / "bin").symlink_to(package / "bin")
        return folder
    (folder / "bin").mkdir()
    script = folder / "bin" / "spark-submit"
    script.write_text(_script(java, conf))
    script.chmod(0o700)
    return folder


def our_java(conf: Mapping[str, str]) -> Path | None:
    """The program of the JVM that our own `spark-submit` starts; None where Spark's launcher has
    to, because there is no Java, or by settings that only it understands."""
    return _java(os.environ) if _understood(conf, os.environ) else None


def _understood(conf: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Whether our command is the one that Spark's launcher would print."""
    return not (any(map(environment.get, _ENVIRONMENT)) or any(map(conf.get, _CONF)))


def _java(environment: Mapping[str, str]) -> Path | None:
    """The program that Spark would start, through all links."""
    home = environment.get("JAVA_HOME")
    found = shutil.which(Path(home) / "bin" / "java" if home else "java")
    return Path(found).resolve() if found else None


def _package() -> Path:
    """PySpark's folder; finding it does not import it."""
    if (found := find_spec("pyspark")) is None or found.origin is None:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")
    return Path(found.origin).resolve().parent


def our_jars() -> list[Path]:
    """Spark's without MLlib. In an order that does not change, which `jars/*` has not: the archive
    of classes depends on it. A class is looked for in one jar after the other, a millisecond for
    all 280: most are in the first."""

    def place(path: Path) -> tuple[int, str]:
        hits = (number for number, name in enumerate(_FIRST) if path.name.startswith(name))
        return next(hits, len(_FIRST)), path.name

    found = (_package() / "jars").glob("*.jar")
    return sorted((each for each in found if not each.name.startswith(_UNUSED)), key=place)


def _script(java: Path, conf: Mapping[str, str]) -> str:
    command = shlex.join([
        str(java), "-cp", ":".join(map(str, our_jars())), f"-Xmx{conf['spark.driver.memory']}",
        *shlex.split(conf.get("spark.driver.extraJavaOptions", "")), *MODULES,
        "-Dderby.connection.requireAuthentication=false", "org.apache.spark.deploy.SparkSubmit",
    ])  # fmt: skip
    # Ctrl-C is for the service.
    lines = ["#!/bin/sh", "trap '' INT", "export PYTHONHASHSEED=0 SPARK_SCALA_VERSION=2.13"]
    return "\n".join([*lines, f'exec {command} "$@"']) + "\n"


def is_local(master: str) -> bool:
    """Whether tasks run in the driver's own JVM (`local`, `local[...]`), not on a cluster."""
    return master == "local" or master.startswith("local[")


def with_slots(master: str, slots: int) -> str:
    """A local master with room for `slots` tasks, which mostly wait and need no core each."""
    if (found := _LOCAL.fullmatch(master)) is None:
        return master  # Spark reports what is wrong with it
    threads, failures = found["threads"] or "1", found["failures"] or ""
    cores = os.cpu_count() or 1 if threads == "*" else int(threads)
    return master if cores >= slots else f"local[{slots}{failures}]"
