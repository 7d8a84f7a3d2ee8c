"""PySpark's daemon prints no traceback for a closed connection, and every other one."""

import subprocess
import sys

import pytest

# As PySpark's daemon does in its forks.
FORK = """
import traceback
from penstock.spark.datasource import end_quietly

def {function}():
    try:
        raise {error}
    except BaseException:
        traceback.print_exc()

end_quietly()
{function}()
"""


@pytest.mark.parametrize(
    ("function", "error", "quiet"),
    [
        ("manager", "BrokenPipeError('oh')", True),
        ("manager", "ConnectionResetError('oh')", True),
        ("manager", "OSError('oh')", False),
        ("users", "BrokenPipeError('oh')", False),
    ],
)
def test_only_the_daemon_s_closed_connection_prints_nothing(
    function: str, error: str, quiet: bool
) -> None:
    command = [sys.executable, "-c", FORK.format(function=function, error=error)]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert ("Traceback" not in printed) == quiet
    assert quiet or "Error: oh" in printed
