"""A question to the ops server of a pipeline that may run on this machine."""

import http.client
import json
from typing import Any

_PATIENCE = 10.0  # seconds
# Bytes of an answer: more is not ours.
_LONGEST = 16 * 2**20


def ask_ops(bind: str, port: int, path: str) -> dict[str, Any]:
    """The JSON object it answers with; empty where nothing answers, or something else."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(bind, bind)  # noqa: S104
    connection = http.client.HTTPConnection(host, port, timeout=_PATIENCE)
    try:
        connection.request("GET", path)
        answer = json.loads(connection.getresponse().read(_LONGEST))
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    finally:
        connection.close()
    return answer if isinstance(answer, dict) else {}
