"""The class archive: the classes that Spark loads, in a file that a JVM maps into memory (Java's
class-data sharing). Loading them is half of a cold start.

A JVM without one lists the classes that it loads, which costs nothing; another JVM makes the
archive from that list. Java starts without an archive that is damaged, or that another Java or
other jars made.
"""

import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
# Mapped where it was made for: elsewhere all of its addresses are written anew at each start, into
# memory that is no file's (measured: 117 MB instead of 51, and a tenth of a second). Javas 17 to 25
# have the option.
_IN_PLACE = "-XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0"
# Appended when it is complete. A JVM that maps a file that was cut short is killed (observed).
_END = b"complete"

# The maker's memory is the first that the kernel takes back, and other work goes before its own.
_LAST = 'echo 1000 >/proc/self/oom_score_adj; exec nice -n 19 "$@"'
_MAKER = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xlog:disable",
    "-Xshare:dump",
)
_DRAFTS = ".making-"
# Seconds after which a draft is of a process that was killed, and an archive of an earlier Java.
_ABANDONED, _UNUSED = 3600.0, 30 * 86_400.0


class ClassArchive:
    """The archive in the file at `path`, and the list `classes` of the JVM of this session. With
    `is_ours`, the file is penstock's own: a broken one is replaced, a failure is no warning."""

    def __init__(self, path: Path, classes: Path, *, is_ours: bool) -> None:
        self.path, self._classes, self._is_ours = path, classes, is_ours
        self._maker: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False
        # Whether this session's JVM lists the classes for one that is to be made.
        self.is_wanted = not self._is_there()

    def options(self) -> str:
        """Java's."""
        if self.is_wanted:
            return f"{shlex.quote(f'-XX:DumpLoadedClassList={self._classes}')} {_QUIET}"
        if self._is_complete():
            with suppress(OSError):
                os.utime(self.path)
            used = shlex.quote(f"-XX:SharedArchiveFile={self.path}")
            return f"{used} -Xshare:auto -XX:+VerifySharedSpaces {_IN_PLACE} {_QUIET}"
        _log("warning", "the class archive is not complete: remove the file", file=str(self.path))
        return ""

    def _is_there(self) -> bool:
        return self._is_complete() if self._is_ours else self.path.exists()

    def _is_complete(self) -> bool:
        with suppress(OSError), self.path.open("rb") as file:
            file.seek(-len(_END), os.SEEK_END)
            return file.read() == _END
        return False

    def make(self, java: Path, classpath: str) -> None:
        """Begins to make it, once, for this Java and these jars; returns at once."""
        wanted, self.is_wanted = self.is_wanted, False
        if wanted and not self._is_there():  # another service may have made it
            arguments = (java, classpath)
            self._thread = threading.Thread(
                target=self._make, args=arguments, name="class-archive", daemon=True
            )
            self._thread.start()

    def _make(self, java: Path, classpath: str) -> None:
        begun = time.monotonic()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._remove_old()
            with TemporaryDirectory(prefix=_DRAFTS, dir=self.path.parent) as folder:
                draft = Path(folder) / "classes.jsa"
                self._dump([
                    str(java), "-cp", classpath, *_MAKER,
                    f"-XX:SharedClassListFile={self._classes}", f"-XX:SharedArchiveFile={draft}",
                ])  # fmt: skip
                draft.chmod(0o644)
                with draft.open("ab") as file:
                    file.write(_END)
                    file.flush()
                    os.fsync(file.fileno())  # a name must not last longer than what it names
                draft.replace(self.path)
        except OSError as error:
            if not self._is_closed:
                level = "debug" if self._is_ours else "warning"
                _log(
                    level, "the class archive was not made",
                    file=str(self.path), error=str(error),
                )  # fmt: skip
            return
        seconds = round(time.monotonic() - begun)
        _log("info", "the class archive is made", file=str(self.path), seconds=seconds)

    def _dump(self, command: Sequence[str]) -> None:
        self._maker = subprocess.Popen(  # noqa: S603 - the Java that Spark runs on
            ["/bin/sh", "-c", _LAST, "sh", *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        if self._is_closed:
            self._maker.kill()
        if code := self._maker.wait():
            raise OSError(f"Java ended with {code}")

    def _remove_old(self) -> None:
        folder = self.path.parent
        found = [(left, _ABANDONED) for left in folder.glob(f"{_DRAFTS}*")]
        if self._is_ours:
            found += [(left, _UNUSED) for left in folder.glob("spark-*.jsa")]
        for left, age in found:
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > age:
                    shutil.rmtree(left) if left.is_dir() else left.unlink()

    def close(self) -> None:
        """Ends the making; what there is of it is removed."""
        self._is_closed = True
        if self._maker is not None:
            self._maker.kill()
        if self._thread is not None:
            self._thread.join()


def cached_archive(java: Path, jars: Sequence[Path]) -> Path | None:
    """The file of the archive for this Java and these jars: the one that this environment brings
    (an image's), else one in the user's cache. None where there is no private folder for it."""
    brought = Path(sys.prefix) / "spark-classes.jsa"
    if brought.exists():
        return brought
    try:
        folder = _private_folder()
        facts = [f"{path}\0{(stat := path.stat()).st_size}\0{stat.st_mtime_ns}"
                 for path in (java, *jars)]  # fmt: skip
    except (OSError, RuntimeError) as error:
        # (Commands that preview have no log of ours, and print for people.)
        logging.getLogger("penstock").debug("there is no folder for a class archive: %s", error)
        return None
    return folder / f"spark-{hashlib.sha256(chr(10).join(facts).encode()).hexdigest()[:16]}.jsa"


def _private_folder() -> Path:
    """Where only this user can write: what an archive holds runs in the JVM. Raises OSError, and
    RuntimeError for a user without a home."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = (cache if cache.is_absolute() else Path.home() / ".cache") / "penstock"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stat = folder.stat()
    if stat.st_uid != os.getuid() or stat.st_mode & 0o022:
        raise PermissionError(f"others can write to {folder}")
    return folder


def _log(level: str, event: str, **facts: object) -> None:
    import structlog  # late: it takes longer than all of this, and the JVM is to start

    getattr(structlog.get_logger("penstock"), level)(event, **facts)
