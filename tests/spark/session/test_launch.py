"""Our way to start the JVM: the command of Spark's own launcher, without the JVM that prints it."""

import os
import shlex
import subprocess
from pathlib import Path

import pyspark
import pytest

from penstock.spark.session.launch import make_home

CONF = {"spark.driver.memory": "640m", "spark.driver.extraJavaOptions": "-Da=b -Dc='d e'"}
PACKAGE = Path(pyspark.__file__).resolve().parent


def script(home: Path) -> str:
    return (home / "bin" / "spark-submit").read_text()


def test_the_command_is_that_of_sparks_launcher(tmp_path: Path) -> None:
    ours = shlex.split(script(make_home(tmp_path / "home", CONF)).splitlines()[-1])[1:-1]
    options = [word for key, value in CONF.items() for word in ("--conf", f"{key}={value}")]
    printed = subprocess.run(
        [
            ours[0], "-cp", f"{PACKAGE}/jars/*", "org.apache.spark.launcher.Main",
            "org.apache.spark.deploy.SparkSubmit", *options, "pyspark-shell",
        ],
        env={**os.environ, "SPARK_HOME": str(PACKAGE), "SPARK_SCALA_VERSION": "2.13"},
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    theirs = printed.stdout.strip("\0\n").split("\0")
    theirs = theirs[: theirs.index("org.apache.spark.deploy.SparkSubmit") + 1]
    assert Path(theirs[0]).resolve() == Path(ours[0])
    unused = {"--add-modules=jdk.incubator.vector"}
    assert set(theirs[3:]) - set(ours) == unused
    assert set(ours[3:]) - set(theirs) == set()
    left_out = {*PACKAGE.glob("jars/*.jar")} - {*map(Path, ours[2].split(":"))}
    assert [each.name.partition("_")[0] for each in left_out] == ["spark-mllib"]


@pytest.mark.parametrize(
    ("variable", "conf"),
    [
        ("SPARK_CONF_DIR", {}),
        ("SPARK_SUBMIT_OPTS", {}),
        ("", {"spark.driver.extraClassPath": "/a.jar"}),
        ("", {"spark.driver.extraLibraryPath": "/lib"}),
    ],
)
def test_what_only_spark_understands_is_left_to_spark(
    variable: str, conf: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable:
        monkeypatch.setenv(variable, "/somewhere")
    home = make_home(tmp_path / "home", CONF | conf)
    assert (home / "bin").resolve() == PACKAGE / "bin"


def test_without_java_spark_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert (make_home(tmp_path / "home", CONF) / "bin").resolve() == PACKAGE / "bin"
