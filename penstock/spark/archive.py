"""An archive of the classes that Spark loads, in the user's cache: half of a cold start is loading.

Java's own application class-data sharing (JEP 350). The first session makes the archive when its
JVM ends; later ones map it into memory. Java itself checks that archive and jars fit together
(and its checksum), and goes on without it when they do not; our name for it says the same, so that
several can be kept.
"""

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyspark

__all__ = ["Archive", "find_archive"]

SWITCH = "PENSTOCK_CLASS_ARCHIVE"
_ABANDONED = 86_400.0  # seconds after which a half-made archive is of nobody


class Archive:
    """A place for an archive. Several processes may make it at once: the last one's stays."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.with_name(f"{path.name}.size")
        self.draft = path.with_name(f"{path.name}.{os.getpid()}.draft")

    @property
    def exists(self) -> bool:
        """Whether there is one to use, whole; if not, it is worth making. A JVM checks much, but
        one that maps half a file is killed (observed): so its size is kept beside it."""
        try:
            return self.path.stat().st_size == int(self.size.read_text())
        except (OSError, ValueError):
            return False

    @property
    def options(self) -> list[str]:
        """Java's options that use the archive, or that make it at the JVM's end."""
        quiet = ["-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off"]
        if self.exists:
            return [
                f"-XX:SharedArchiveFile={self.path}", "-Xshare:auto", "-XX:+VerifySharedSpaces",
                *quiet,
            ]  # fmt: skip
        return [f"-XX:ArchiveClassesAtExit={self.draft}", *quiet]


def find_archive(
    java: Path, classpath: Sequence[Path], environment: Mapping[str, str]
) -> Archive | None:
    """Where the archive of this Java and these jars is, or will be; None when it is turned off
    (PENSTOCK_CLASS_ARCHIVE=off) or there is no private folder to keep it in."""
    if environment.get(SWITCH, "").lower() in ("off", "0", "no", "false"):
        return None
    try:
        folder = _folder(environment)
        _sweep(folder)
        name = _digest(java, classpath)
    except OSError:
        return None  # a read-only or a missing home: every start is a cold one
    return Archive(folder / f"spark-{pyspark.__version__}-{name}.jsa")


def _folder(environment: Mapping[str, str]) -> Path:
    """Ours alone: what is in it runs in our JVM."""
    cache = Path(environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "")) / ".cache")
    if not cache.is_absolute():
        raise FileNotFoundError("no home folder")
    folder = cache / "penstock"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} can be written to by others")
    return folder


def _digest(java: Path, classpath: Sequence[Path]) -> str:
    """Of what must be the same for an archive to fit: the JVM, and each jar as Java compares it."""
    found = hashlib.sha256()
    for path in (java, *classpath):
        stat = path.stat()
        found.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return found.hexdigest()[:16]


def _sweep(folder: Path) -> None:
    """Removes drafts of processes that were killed while they wrote."""
    for draft in folder.glob("*.draft"):
        try:
            if time.time() - draft.stat().st_mtime > _ABANDONED:
                draft.unlink()
        except FileNotFoundError:
            continue
