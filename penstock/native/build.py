"""Compiles the C files beside this one into one shared library: `python penstock/native/build.py`.

Plain C without Python.h: one library serves every Python, and a C compiler is all that it takes.
setup.py loads this file by its path, before penstock can be imported: it needs nothing but the
standard library. The sources' digest is compiled in, so that a test can tell a stale library.
"""

import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# Not *.so: Python would take it for a module.
LIBRARY = "libpenstock.so.1"
# No -march=native: the library is made on one machine and runs on another.
FLAGS = (
    "-std=c11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-strict-aliasing",
    "-Wall", "-Wextra", "-Wshadow", "-Wvla", "-Wpointer-arith", "-Wstrict-prototypes",
    "-Werror=implicit-function-declaration", "-Werror=incompatible-pointer-types",
    "-Werror=int-conversion", "-Werror=return-type",
)  # fmt: skip
# For tests; the process that loads it needs LD_PRELOAD=libasan.so.
SANITIZE = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
_HERE = Path(__file__).resolve().parent


def sources(folder: Path = _HERE) -> list[Path]:
    """Every C file: a new one only has to be there."""
    return sorted(folder.glob("*.c"))


def digest(folder: Path = _HERE) -> str:
    """Of the C files and headers: 16 hexadecimal digits."""
    found = hashlib.sha256()
    for path in sorted([*folder.glob("*.c"), *folder.glob("*.h")]):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def command(target: Path, extra: Sequence[str] = (), folder: Path = _HERE) -> list[str]:
    """The compiler's command line; CC and CFLAGS have their usual meaning."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    flags = [*FLAGS, *extra, *shlex.split(os.environ.get("CFLAGS", ""))]
    stamp = f'-DPENSTOCK_DIGEST="{digest(folder)}"'
    return [*compiler, *flags, stamp, *map(str, sources(folder)), "-lm", "-o", str(target)]


def compile_library(target: Path, extra: Sequence[str] = (), folder: Path = _HERE) -> None:
    """Makes `target`, or raises OSError (no compiler) or CalledProcessError (it found fault)."""
    fresh = target.with_name(f"{target.name}.{os.getpid()}")
    subprocess.run(command(fresh, extra, folder), check=True)  # noqa: S603 - our own compiler
    # A process that has the old one loaded keeps it.
    fresh.replace(target)


def main() -> None:
    """Builds in place: what a checkout needs after its C files changed."""
    target = _HERE / LIBRARY
    compile_library(target, sys.argv[1:])
    sys.stdout.write(f"{target}\n")


if __name__ == "__main__":
    main()
