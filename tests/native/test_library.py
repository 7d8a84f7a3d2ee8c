"""The library is built, found, up to date, and can be turned off; without it all is as before."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import native
from penstock.native import build

HERE = Path(native.__file__).parent
HOW = "; run: python penstock/native/build.py"


def says(**env: str) -> str:
    env = {"PYTHONPATH": str(HERE.parents[1]), **env}
    code = "from penstock import native; print(native.library() is None, native.describe())"
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, cwd="/",
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip


def have_library() -> ctypes.CDLL:
    if not (HERE / build.LIBRARY).exists():
        pytest.skip("the native library was not built: no C compiler")
    path = HERE / build.LIBRARY
    return ctypes.CDLL(str(path))


def test_the_library_is_of_this_version() -> None:
    assert have_library().penstock_abi() == native.ABI, f"stale{HOW}"


def test_the_library_is_made_from_these_sources() -> None:
    stamp = have_library().penstock_digest
    stamp.restype = ctypes.c_char_p
    assert stamp().decode() == build.digest(), f"stale{HOW}"


def test_the_library_is_used_where_it_is() -> None:
    have_library()
    assert says(PENSTOCK_NATIVE="") == "False used\n"


@pytest.mark.parametrize("word", ["off", "OFF", "0"])
def test_the_library_can_be_turned_off(word: str) -> None:
    assert says(PENSTOCK_NATIVE=word) == "True turned off by PENSTOCK_NATIVE\n"


def copied(folder: Path, abi: int, *, with_library: bool) -> str:
    """What a copy of the package says whose Python expects this version."""
    package = folder / "penstock" / "native"
    package.mkdir(parents=True)
    (folder / "penstock" / "__init__.py").touch()
    code = (HERE / "__init__.py").read_text()
    (package / "__init__.py").write_text(code.replace(f"ABI = {native.ABI}", f"ABI = {abi}"))
    if with_library:
        (package / build.LIBRARY).write_bytes((HERE / build.LIBRARY).read_bytes())
    return says(PENSTOCK_NATIVE="", PYTHONPATH=str(folder))


def test_a_library_of_another_version_is_not_used(tmp_path: Path) -> None:
    have_library()
    said = copied(tmp_path, native.ABI + 1, with_library=True)
    assert said.startswith("True built for another version")


def test_without_the_library_there_is_none(tmp_path: Path) -> None:
    assert copied(tmp_path, native.ABI, with_library=False).startswith("True not built")


def test_sources_that_do_not_compile_leave_the_old_library(tmp_path: Path) -> None:
    (tmp_path / "broken.c").write_text("this is not C")
    target = tmp_path / build.LIBRARY
    target.write_bytes(b"old")
    with pytest.raises((subprocess.CalledProcessError, OSError)):
        build.compile_library(target, folder=tmp_path)
    assert target.read_bytes() == b"old"


def test_a_new_c_file_only_has_to_be_there(tmp_path: Path) -> None:
    have_library()
    (tmp_path / "one.c").write_text("int one(void); __attribute__((visibility(\"default\")))"
                                    "int one(void) { return 1; }")  # fmt: skip
    target = tmp_path / build.LIBRARY
    build.compile_library(target, folder=tmp_path)
    assert ctypes.CDLL(str(target)).one() == 1


def test_no_kernel_knows_python() -> None:
    """So that one library serves every Python."""
    for path in [*HERE.glob("*.c"), *HERE.glob("*.h")]:
        assert "#include <Python.h>" not in path.read_text()
        assert len(path.read_text().splitlines()) <= 350, path.name
