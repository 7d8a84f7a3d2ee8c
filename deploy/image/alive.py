"""`alive.py FILE [PATH]` exits with 0 if the pipeline in FILE answers PATH (`/`) at its `ops.port`:
the health check of the image."""

import os
import sys
import urllib.request
from pathlib import Path

import yaml

file, path = sys.argv[1], (sys.argv[2:] or ["/"])[0]
text = os.path.expandvars(Path(file).read_text("utf-8"))
port = (yaml.safe_load(text).get("ops") or {}).get("port", 9090)
urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5)
