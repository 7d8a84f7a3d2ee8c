"""The one thing that pyproject.toml can't say: the optional library of penstock/native.

It is plain C: the wheel that holds it serves every Python of its platform. Without a C compiler
the same wheel is made without it, for any platform.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NATIVE = Path(__file__).resolve().parent / "penstock" / "native"


def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("penstock_native_build", NATIVE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BUILD = builder()


def can_compile() -> bool:
    """Tried, not guessed: headers may be missing where a compiler is not."""
    target = Path("build") / "probe.so"
    target.parent.mkdir(exist_ok=True)
    try:
        BUILD.compile_library(target, folder=NATIVE)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write(
            f"penstock: the native library is left out ({error}). Everything works without it, "
            "more slowly. To have it: install a C compiler (Debian: gcc libc6-dev) and install "
            "penstock again.\n"
        )
        return False
    target.unlink()
    return True


class BuildLibrary(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")[:-1], BUILD.LIBRARY))

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        BUILD.compile_library(target, folder=NATIVE)


class Wheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        platform = super().get_tag()[2]
        return "py3", "none", platform


root = Path(__file__).resolve().parent
files = [str(path.relative_to(root)) for path in BUILD.sources(NATIVE)]
headers = [str(path.relative_to(root)) for path in NATIVE.glob("*.h")]
library = Extension("penstock.native._penstock", sources=files, depends=headers)

setup(
    ext_modules=[library] if can_compile() else [],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": Wheel},
)
