"""Copies of a server: its data files as they were, and standbys."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.servers import Postgres


def _empty(server: Postgres, settings: Mapping[str, object] | None = None) -> Postgres:
    made = Postgres(version=server.version, settings={**server.settings, **(settings or {})})
    made.folder.chmod(0o755)
    return made


def _give(made: Postgres) -> None:
    """The data to the user that the server runs as."""
    user = made.user
    for folder, _, files in os.walk(made.data):
        for name in ("", *files):
            if user is not None:
                os.chown(Path(folder, name), user, user, follow_symlinks=False)
    made.data.chmod(0o700)


def copy_of(server: Postgres) -> Postgres:
    """Its data files as they are now, slots among them; the server must be stopped, and goes on
    as if nothing was. The copy is not started."""
    made = _empty(server)
    shutil.copytree(server.data, made.data, ignore=shutil.ignore_patterns("postmaster.pid"))
    _give(made)
    return made


def backup_of(
    server: Postgres, *options: str, settings: Mapping[str, object] | None = None
) -> Postgres:
    """A base backup, which has no slots; with `-R` a standby. Not started."""
    made = _empty(server, settings)
    subprocess.run(
        [
            str(server.bin / "pg_basebackup"), "-D", str(made.data), "-X", "stream",
            "-c", "fast", "-d", f"host={server.host} port={server.port} user=postgres"
            " dbname=postgres", *options,
        ],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    _give(made)
    return made
