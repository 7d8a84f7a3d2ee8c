"""An archive of the classes that Spark loads: loading classes is half of a cold start.

This is Java's application class-data sharing. `penstock class-archive` makes the archive, and only
that does; a session that finds one maps it into memory. Java checks that archive and jars fit
together (and a checksum), and starts without the archive when they do not. The file's name says
the same, so that several can be kept. Nothing here imports PySpark.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

PLACE = "PENSTOCK_CLASS_ARCHIVE"
_OFF = ("off", "0", "no", "false")
# Seconds after which an archive that no session used is removed by the next one that is made.
_UNUSED = 30 * 86_400.0

_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")


class Archive:
    """The archive `name` in `folder`, whether it exists or not.

    The file's size is in its name. Java checks much, but a JVM that maps half a file is killed
    (observed), so a file that was cut short is not used.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self._name = name

    @property
    def path(self) -> Path | None:
        """The file, if there is one that is complete and that no other user can write to."""
        if not _private(self.folder):
            return None
        found = sorted(self.folder.glob(f"{self._name}-*.jsa"))
        return next((each for each in found if _whole(each) and _private(each)), None)

    def options(self) -> tuple[str, ...]:
        """Java's options that use the archive; none without one."""
        path = self.path
        if path is None:
            return ()
        with suppress(OSError):  # in an image: read-only, and of another user
            os.utime(path)
        return (f"-XX:SharedArchiveFile={path}", "-Xshare:auto", "-XX:+VerifySharedSpaces", *_QUIET)

    def make(self, dump: Callable[[Path], None]) -> Path:
        """Has `dump` write a file, which takes its name in one step. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _private(self.folder):
            raise PermissionError(f"other users can write to {self.folder}")
        with tempfile.TemporaryDirectory(dir=self.folder, prefix=".making-") as scratch:
            draft = Path(scratch) / "classes.jsa"
            dump(draft)
            made = self.folder / f"{self._name}-{draft.stat().st_size}.jsa"
            draft.replace(made)
        _sweep(self.folder)
        return made


def find_archive(
    java: Path, classpath: Sequence[Path], environment: Mapping[str, str]
) -> Archive | None:
    """Where the archive of this Java and these jars is, or would be. None when it is turned off,
    when there is no folder for it, or when a jar is missing.

    The folder is `PENSTOCK_CLASS_ARCHIVE` (`off`: no archive), else `penstock` in the user's cache.
    """
    place = environment.get(PLACE, "")
    if place.lower() in _OFF:
        return None
    cache = Path(environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "")) / ".cache")
    folder = Path(place) if place else cache / "penstock"
    if not folder.is_absolute():
        return None
    try:
        return Archive(folder, f"spark-{version('pyspark')}-{_digest(java, classpath)}")
    except OSError:
        return None


def _private(path: Path) -> bool:
    """Only this user, or root, can have written it: what an archive holds runs in our JVM."""
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_uid in (os.getuid(), 0) and not found.st_mode & 0o022


def _digest(java: Path, classpath: Sequence[Path]) -> str:
    """Of what must be the same for an archive to fit: the JVM, and each jar as Java compares it."""
    found = hashlib.sha256()
    for path in (java, *classpath):
        stat = path.stat()
        found.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return found.hexdigest()[:16]


def _whole(path: Path) -> bool:
    try:
        return path.stat().st_size == int(path.stem.rpartition("-")[2])
    except (OSError, ValueError):
        return False


def _sweep(folder: Path) -> None:
    """Removes archives that no session used for a month: of another Java, of an older Spark."""
    for path in folder.glob("spark-*.jsa"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _UNUSED:
                path.unlink()
