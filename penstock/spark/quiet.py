"""The end of PySpark's own workers, without tracebacks.

When Spark stops, the JVM closes the connections of its Python processes. PySpark's daemon prints a
traceback for each fork that then has output left. (Spark has a setting for another daemon, but does
not use it for the processes of sources and sinks.)
"""

import sys
import traceback
from typing import Any

_print = traceback.print_exc
_DAEMON = "manager"  # the function of `pyspark.daemon` that a fork runs in


def end_quietly() -> None:
    """From now on PySpark's daemon prints no closed connection; anything else is as ever."""
    traceback.print_exc = _print_unless_closed


def _print_unless_closed(*given: Any, **more: Any) -> None:
    error = sys.exception()
    trace = error.__traceback__ if isinstance(error, ConnectionError) else None
    if trace is None or trace.tb_frame.f_code.co_name != _DAEMON:
        _print(*given, **more)
