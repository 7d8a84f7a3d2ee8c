"""The image: its file has no lint; and, built for real, it holds a penstock that runs.

Debian's buildah builds it in a chroot, without a container engine, on a base of debootstrap's. It
runs as the image says, from a root that is read-only but for its one volume.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import yaml

from tests.deploy.programs import program
from tests.docs.pages import ROOT
from tests.pipeline.running import commands, count, eventually
from tests.servers import Database, Nats, free_port

FILE = ROOT / "deploy" / "Dockerfile"
MOST = 900e6  # bytes, of all layers
USER = 10001
SLIM = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale")


def test_the_file_has_no_lint() -> None:
    subprocess.run([Path(sys.executable).with_name("hadolint"), FILE], check=True)


def test_every_file_that_is_copied_is_there() -> None:
    copied = [
        shlex.split(line)[1:-1]
        for line in FILE.read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
    ]
    assert copied
    assert [name for names in copied for name in names if not (ROOT / name).exists()] == []


class Image(NamedTuple):
    """Its configuration, the folder with its files, and the bytes of its layers by what made
    them."""

    config: Mapping[str, Any]
    root: Path
    layers: Mapping[str, int]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """Built with a store of its own, which goes in the end."""
    program("buildah", "buildah")
    program("debootstrap", "debootstrap")
    if os.geteuid() != 0:
        pytest.skip("debootstrap and mounts need root")
    folder: Path = tmp_path_factory.mktemp("image")
    store = [f"--root={folder / 'store'}", f"--runroot={folder / 'run'}", "--storage-driver=vfs"]

    def buildah(*arguments: str | Path) -> str:
        command = ["buildah", *store, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout.strip()

    try:
        base = folder / "base"
        subprocess.run(["debootstrap", "--variant=minbase", "bookworm", base], check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
        for part in SLIM:
            shutil.rmtree(base / part)
            (base / part).mkdir()
        empty = buildah("from", "scratch")
        buildah("add", "--quiet", empty, base, "/")
        buildah("commit", "--quiet", "--rm", empty, "base")
        shutil.rmtree(base)
        bud = ["bud", "--isolation=chroot", "--network=host", "--layers", "--format=docker"]
        own = pip_configuration(folder)
        buildah(*bud, *own, "--build-arg=BASE=base", "--file", FILE, "--tag=penstock", ROOT)
        buildah("push", "--quiet", "--disable-compression", "penstock", f"dir:{folder / 'pushed'}")
        container = buildah("from", "penstock")
        root = Path(buildah("mount", container))
        yield Image(json.loads(buildah("inspect", "--type=image", "penstock"))["Docker"]["config"],
                    root, layers(folder / "pushed"))  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def pip_configuration(folder: Path) -> list[str]:
    """Volumes with this machine's, for the build. Its certificates get a path of their own: the
    build installs the package that writes Debian's."""
    file = Path("/etc/pip.conf")
    if not file.exists():
        return []
    text, copy = file.read_text(), folder / "pip.conf"
    volumes = [f"--volume={copy}:{file}:ro"]
    if found := re.search(r"^cert *= *(.+)$", text, re.MULTILINE):
        text = text.replace(found[1], "/etc/pip.crt")
        volumes.append(f"--volume={found[1]}:/etc/pip.crt:ro")
    copy.write_text(text)
    return volumes


def layers(pushed: Path) -> dict[str, int]:
    manifest = json.loads((pushed / "manifest.json").read_text())
    config = json.loads((pushed / manifest["config"]["digest"].partition(":")[2]).read_text())
    made = [each["created_by"] for each in config["history"] if not each.get("empty_layer")]
    sizes = [each["size"] for each in manifest["layers"]]
    return {
        f"{n}: {what[:90]}": size for n, (what, size) in enumerate(zip(made, sizes, strict=True))
    }


# Mounts in a namespace of its own: the root read-only, but for the volume. As with an engine,
# a container knows its own name.
READ_ONLY = """
set -eu
mount --bind "$ROOT" "$ROOT"
mount -t tmpfs -o "mode=0700,uid=$USER,gid=$USER" tmpfs "$ROOT/var/lib/penstock"
mount --bind /etc/hosts "$ROOT/etc/hosts"
mount --rbind /dev "$ROOT/dev"
mount -t proc proc "$ROOT/proc"
mount -o remount,ro,bind "$ROOT"
exec chroot --userspec="$USER:$USER" "$ROOT" "$@"
"""


def started(image: Image, *command: str, **variables: str) -> subprocess.Popen[str]:
    """As the image says, with these variables."""
    environment = dict(each.split("=", 1) for each in image.config["Env"])
    own = {"ROOT": str(image.root), "USER": str(USER)}
    return subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", *command],
        env=environment | own | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def done(image: Image, *command: str, **variables: str) -> tuple[int, str]:
    process = started(image, *command, **variables)
    text = process.communicate(timeout=300)[0]
    return process.returncode, text


@pytest.fixture
def pipeline(image: Image, database: Database, nats: Nats) -> Callable[..., Mapping[str, str]]:
    """Puts a pipeline file into the image; gives its variables."""
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY); CREATE PUBLICATION shop FOR TABLE items"
    )

    def write(port: int) -> Mapping[str, str]:
        file = yaml.safe_load((ROOT / "deploy" / "compose" / "pipeline.yaml").read_text())
        file["backends"][0]["slot"] = database.name
        file["sink"] |= {"stream": "IMAGE", "subject": "image.{collection}.{operation}"}
        file["ops"]["port"] = port
        target = image.root / "etc" / "penstock"
        target.mkdir(exist_ok=True)
        (target / "pipeline.yaml").write_text(yaml.safe_dump(file))
        return {"PG_URL": database.url, "NATS_URL": nats.url}

    return write


@pytest.mark.thorough
@pytest.mark.live
@pytest.mark.spark
@pytest.mark.timeout(3600)
def test_the_image_is_small_and_runs_a_pipeline_from_a_read_only_root(
    image: Image, pipeline: Callable[..., Mapping[str, str]], database: Database, nats: Nats
) -> None:
    for what, size in image.layers.items():
        print(f"{size / 1e6:7.1f} MB  {what}")
    print(f"{sum(image.layers.values()) / 1e6:7.1f} MB in all")
    config = image.config
    assert config["User"] == f"{USER}:{USER}"
    assert list(config["Volumes"]) == ["/var/lib/penstock"]
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"

    port = free_port()
    variables = pipeline(port)
    code, text = done(
        image, *config["Entrypoint"], "check", "/etc/penstock/pipeline.yaml", **variables
    )
    assert code == 0, text
    assert "native library is used" in text

    run = started(image, *config["Entrypoint"], *config["Cmd"], **variables)
    try:

        def healthy() -> bool:
            if run.poll() is not None:
                pytest.fail(run.communicate()[0])
            kind, *check = config["Healthcheck"]["Test"]
            assert kind == "CMD"
            return done(image, *check, "/ready")[0] == 0  # at the port of the file

        eventually(healthy)
        every = commands(psutil.Process(run.pid).children(recursive=True))
        assert any(
            "-XX:SharedArchiveFile=/opt/penstock/spark-classes.jsa" in each for each in every
        )
        database.execute("INSERT INTO items SELECT generate_series(1, 100)")
        eventually(lambda: count(nats, "IMAGE") == 100)
    finally:
        run.send_signal(signal.SIGTERM)
        print(run.communicate(timeout=180)[0])
    assert run.returncode == 0
    assert sum(image.layers.values()) < MOST
