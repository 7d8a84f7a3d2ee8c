"""An archive of the classes that Spark loads: loading classes is half of a cold start.

This is Java's application class-data sharing: a JVM writes the archive at its exit, later ones map
it into memory. Java starts without one that is damaged, or that another Java or other jars made.
"""

import os
import shlex
import subprocess
from contextlib import suppress
from pathlib import Path

import structlog

log = structlog.get_logger("penstock")

_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
# Appended when it is complete. A JVM that maps a file that was cut short is killed (observed).
_END = b"complete"
# Seconds. A JVM writes an archive in some 13 s.
_PATIENCE = 300.0


class ClassArchive:
    """The file at `path`, used by a session; one that finds no file there makes it."""

    def __init__(self, path: Path) -> None:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
        self.draft = None if path.exists() else path.with_name(f".{path.name}.{os.getpid()}")
        self._path = path

    def options(self) -> str:
        """Java's options that make or use the archive."""
        if self.draft:
            return f"{shlex.quote(f'-XX:ArchiveClassesAtExit={self.draft}')} {_QUIET}"
        with suppress(OSError), self._path.open("rb") as file:
            file.seek(-len(_END), os.SEEK_END)
            if file.read() == _END:
                used = shlex.quote(f"-XX:SharedArchiveFile={self._path}")
                return f"{used} -Xshare:auto -XX:+VerifySharedSpaces {_QUIET}"
        log.warning("the class archive is not complete: remove the file", file=str(self._path))
        return ""

    def keep(self, jvm: "subprocess.Popen[bytes]") -> None:
        """Waits for the end of the JVM that makes the archive, and gives the file its name."""
        if self.draft is None:
            return
        try:
            if code := jvm.wait(_PATIENCE):
                raise OSError(f"Java ended with {code}")
            self.draft.chmod(0o644)
            with self.draft.open("ab") as file:
                file.write(_END)
            self.draft.replace(self._path)
        except (OSError, subprocess.TimeoutExpired) as error:
            with suppress(OSError):
                self.draft.unlink()
            log.warning("the class archive was not made", file=str(self._path), error=str(error))
