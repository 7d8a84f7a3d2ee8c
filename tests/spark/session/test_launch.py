"""Our way to start the JVM: the command of Spark's own launcher, without the JVM that prints it."""

import os
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pyspark
import pytest

from penstock.spark.session.class_list import make_archive
from penstock.spark.session.launch import make_home

CONF = {"spark.driver.memory": "640m", "spark.driver.extraJavaOptions": "-Da=b -Dc='d e'"}
PACKAGE = Path(pyspark.__file__).resolve().parent


def script(home: Path) -> str:
    return (home / "bin" / "spark-submit").read_text()


def test_the_command_is_that_of_sparks_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CLASS_ARCHIVE", "off")
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


SESSION = """
    import sys
    from pathlib import Path
    from penstock.spark.session.session import close_session, open_session
    folder = Path(sys.argv[1])
    spark = open_session("t", master="local[1]", folder=folder, mode="realtime", slots=1, conf={})
    print("rows", spark.range(5).count())
    bean = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
    print("arguments", list(bean.getInputArguments()))
    submit = spark.sparkContext._gateway.proc
    close_session(spark)
    submit.wait(120)
"""


def session(folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SESSION), str(folder)],
        check=True, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert "rows 5" in done.stdout
    return done.stdout


@pytest.mark.thorough  # test_archive.py has each case without a session
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_an_archive_is_made_once_used_and_never_trusted_blindly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the test run's own when there is one: making it takes half a minute."""
    kept = make_archive()
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    whole = kept.read_bytes()
    archive = cache / kept.name
    archive.write_bytes(whole)
    monkeypatch.setenv("PENSTOCK_CLASS_ARCHIVE", str(cache))
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "class-archive"],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == f"{archive}\n"
    assert "-XX:SharedArchiveFile=" in session(tmp_path / "used")
    archive.write_bytes(whole[:1000] + b"damaged" + whole[1007:])
    assert "-XX:SharedArchiveFile=" in session(tmp_path / "damaged")
    archive.write_bytes(whole[:100_000])
    assert "-XX:SharedArchiveFile=" not in session(tmp_path / "cut short")


@pytest.mark.spark
def test_a_session_without_an_archive_makes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    monkeypatch.setenv("PENSTOCK_CLASS_ARCHIVE", str(cache))
    assert "-XX:DumpLoadedClassList=" not in session(tmp_path / "session")
    assert list(cache.iterdir()) == []
