"""An archive of the classes that Spark loads, in the user's cache: half of a cold start is loading.

Java's own application class-data sharing. A session without an archive lists the classes it loads,
which costs nothing; when its JVM has ended well, another one makes the archive from the list, in
the background, and later sessions map it into memory. Java itself checks that archive and jars fit
together (and its checksum), and goes on without it when they do not; our name for it says the
same, so that several can be kept.
"""

import hashlib
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pyspark

__all__ = ["Archive", "find_archive"]

SWITCH = "PENSTOCK_CLASS_ARCHIVE"
_DAY = 86_400.0
# Seconds after which an archive is nobody's: of one that is being made, and of one that no session
# took. A JVM makes one in some 20 s of CPU, at the lowest priority.
_ABANDONED = 900.0
_UNUSED = 30 * _DAY

_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
# Is loaded when the first batch of a query is written: a session that did less (a mistake in the
# pipeline file ended it) lists too few classes.
_LAST = "PythonStreamingSinkCommitRunner"


class Archive:
    """A place for the archive `name`, which one process at a time makes.

    The file's size is in its name. Java checks much, but a JVM that maps half a file is killed
    (observed); so one that is cut short is not used.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.stem = folder / name
        self.classes = folder / f"{name}.{os.getpid()}.classes"
        self.draft = folder / f"{name}.draft"

    @property
    def path(self) -> Path | None:
        """The archive, if there is one and it is whole; if not, it is worth making."""
        found = self.stem.parent.glob(f"{self.stem.name}-*.jsa")
        return next((each for each in sorted(found) if _whole(each)), None)

    @property
    def options(self) -> list[str]:
        """Java's options that use the archive, or that list the classes for one."""
        path = self.path
        if path is None:
            return [f"-XX:DumpLoadedClassList={self.classes}", *_QUIET]
        return [f"-XX:SharedArchiveFile={path}", "-Xshare:auto", "-XX:+VerifySharedSpaces", *_QUIET]

    def script(self, dump: Sequence[str]) -> str:
        """A shell's last line behind a JVM with `options`, whose exit code is `$code`; `dump` is a
        command of Java up to its class path.

        Another shell goes on: whoever waits for the JVM's output is let go, and whoever looks for
        processes of the service finds none. The draft is the lock; a whole archive takes its name
        in one step.
        """
        stem, classes, draft = (
            shlex.quote(str(path)) for path in (self.stem, self.classes, self.draft)
        )
        command = shlex.join([
            *dump, "-Xshare:dump", f"-XX:SharedClassListFile={self.classes}",
            f"-XX:SharedArchiveFile={self.draft}.jsa",
        ])  # fmt: skip
        making = [
            "cd /",
            # Another session that began without one may have been faster.
            "whole() {",
            f"for each in {stem}-*.jsa",
            f'do if [ -e "$each" ] && [ "$each" = {stem}-$(($(wc -c < "$each"))).jsa ]; then',
            "return 0; fi; done",
            "return 1; }",
            f'if [ "$1" = 0 ] && ! whole && grep -q {_LAST} {classes} && mkdir {draft}',
            f"then if nice -n 19 {command}",
            f"then mv -f {draft}.jsa {stem}-$(($(wc -c < {draft}.jsa))).jsa",
            f"else rm -f {draft}.jsa; fi; rmdir {draft}; fi",
            f"rm -f {classes}",
            'exit "$1"',
        ]
        text = shlex.quote("\n".join(making))
        return f'exec sh -c {text} penstock-archive "$code" >/dev/null 2>&1 </dev/null'


def find_archive(
    java: Path, classpath: Sequence[Path], environment: Mapping[str, str]
) -> Archive | None:
    """Where the archive of this Java and these jars is, or will be; None when it is turned off
    (PENSTOCK_CLASS_ARCHIVE=off) or there is no private folder to keep it in."""
    if environment.get(SWITCH, "").lower() in ("off", "0", "no", "false"):
        return None
    try:
        folder = _folder(environment)
        archive = Archive(folder, f"spark-{pyspark.__version__}-{_digest(java, classpath)}")
        if archive.path is not None:
            os.utime(archive.path)
        _sweep(folder)
    except OSError:
        return None  # a read-only or a missing home: every start is a cold one
    return archive


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
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{folder} is read-only")
    return folder


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
    """Removes what a killed process left, what was cut short, and what no session uses."""
    for path in folder.glob("spark-*"):
        with suppress(FileNotFoundError):
            age = time.time() - path.stat().st_mtime
            if path.suffix == ".draft":
                if age > _ABANDONED:
                    path.rmdir()
            elif path.suffix == ".classes":
                if age > _DAY:
                    path.unlink()
            elif age > _UNUSED or (not _whole(path) and age > _ABANDONED):
                path.unlink()
