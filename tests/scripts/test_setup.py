"""`scripts/setup`: what it finds, what it may install, and what it says when it may not."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [*sorted((ROOT / "scripts").iterdir()), ROOT / ".ci" / "run"]


def bash(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs code after the functions of scripts/setup were sourced."""
    return subprocess.run(
        ["bash", "-c", f". scripts/setup\n{code}"],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def fake(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def java(folder: Path, version: str) -> Path:
    """A Java home whose java says that it has this version."""
    fake(folder / "bin", "java", f"""echo 'openjdk version "{version}" 2025-04-15' >&2""")
    return folder


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_script_parses_and_may_be_run(script: Path) -> None:
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.1", "25-ea"])
def test_java_17_and_newer_is_taken(tmp_path: Path, version: str) -> None:
    home = java(tmp_path / "jdk", version)
    done = bash('find_java && echo "$JAVA_HOME"', JAVA_HOME=str(home))
    assert done.stdout.strip() == str(home)


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "16"])
def test_an_older_java_is_passed_over(tmp_path: Path, version: str) -> None:
    home = java(tmp_path / "jdk", version)
    assert bash("good_java $JAVA_HOME/bin/java", JAVA_HOME=str(home)).returncode == 1
    done = bash('find_java; echo "$JAVA_HOME"', JAVA_HOME=str(home))
    assert done.stdout.strip() != str(home)


def test_without_java_and_permission_it_says_exactly_what_to_install() -> None:
    done = bash("find_java() { return 1; }; may_install() { return 1; }; find_java || install_java")
    assert done.returncode == 2
    assert "apt-get install openjdk-17-jre-headless" in done.stderr


def test_with_permission_java_is_installed_and_used() -> None:
    done = bash(
        """
        installed=
        may_install() { root=(true); }
        install_packages() { installed=$1; }
        find_java() { [ "$installed" = openjdk-17-jre-headless ]; }
        find_java || install_java
        echo "$installed"
        """
    )
    assert (done.returncode, done.stdout.strip()) == (0, "openjdk-17-jre-headless")


def test_a_system_without_java_17_gets_the_next_one() -> None:
    done = bash(
        """
        installed=
        may_install() { root=(true); }
        install_packages() { [ "$1" != openjdk-17-jre-headless ] && installed=$1; }
        find_java() { [ -n "$installed" ]; }
        install_java
        echo "$installed"
        """
    )
    assert (done.returncode, done.stdout.strip()) == (0, "openjdk-21-jre-headless")


@pytest.mark.parametrize(
    ("find", "packages"), [("find_compiler", "gcc libc6-dev"), ("find_browser", "chromium")]
)
def test_with_permission_it_is_installed(find: str, packages: str) -> None:
    done = bash(
        f"""
        installed=
        may_install() {{ root=(true); }}
        install_packages() {{ installed="$*"; }}
        compiler() {{ [ -n "$installed" ]; }}
        command() {{ false; }}
        {find}
        echo "$installed"
        """
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, packages, "")


def test_without_a_compiler_it_goes_on_and_says_so() -> None:
    done = bash("compiler() { return 1; }; may_install() { return 1; }; find_compiler; echo on")
    assert (done.returncode, done.stdout.strip()) == (0, "on")
    assert "apt-get install gcc libc6-dev" in done.stderr


def test_a_compiler_that_appears_is_a_reason_to_install_again() -> None:
    done = bash("fingerprint; compiler() { echo another; }; fingerprint")
    one, other = done.stdout.split()
    assert one != other


def test_too_old_a_python_is_refused_with_the_remedy(tmp_path: Path) -> None:
    for name in ("python", "python3", *(f"python3.{minor}" for minor in range(11, 15))):
        fake(tmp_path, name, "exit 1")
    done = bash("python=$(find_python)", PATH=f"{tmp_path}:{os.environ['PATH']}", PYTHON="")
    assert done.returncode == 2
    assert "Python 3.11" in done.stderr


def test_python_is_where_the_variable_says(tmp_path: Path) -> None:
    mine = fake(tmp_path, "my-python", "exit 0")
    assert bash("find_python", PYTHON=str(mine)).stdout.strip() == str(mine)


def test_a_python_without_venv_is_told_to_get_it(tmp_path: Path) -> None:
    script = """case "$*" in *ensurepip*) exit 1 ;; *%d.%d*) echo 3.12 ;; esac"""
    mine = fake(tmp_path, "my-python", script)
    done = bash("may_install() { return 1; }; make_venv", PYTHON=str(mine))
    assert done.returncode == 2
    assert "apt-get install python3.12-venv" in done.stderr


def test_nothing_is_done_when_everything_is_there() -> None:
    done = bash(
        """
        make_venv() { echo made; }
        install_java() { echo installed; }
        install_packages() { echo installed; }
        [ -f .venv/penstock-setup ] || exit 0
        grep -q "$(fingerprint)" .venv/penstock-setup || exit 0
        set_up demo
        """
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_an_unknown_target_is_refused() -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "setup", "everything"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "scripts/setup [demo|dev]" in done.stderr
