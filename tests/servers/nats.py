"""The demo's nats-server with a configuration of the test's."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.demo.servers import Nats as DemoNats


class Nats(DemoNats):
    """A nats-server with JetStream; `config` is its configuration file, on top of ours.

    Nested mappings are merged; `{"jetstream": False}` turns JetStream off.
    """

    def __init__(
        self, folder: Path | str | None = None, config: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(folder)
        self.config = dict(config or {})
        self._server_name = str(self.config.get("server_name", self._server_name))

    def _configuration(self) -> str:
        return json.dumps(_merged(json.loads(super()._configuration()), self.config), indent=2)


def _merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(ours)
    for name, value in theirs.items():
        mine = merged.get(name)
        both = isinstance(mine, Mapping) and isinstance(value, Mapping)
        merged[name] = _merged(mine, value) if both else value  # type: ignore[arg-type]
    return merged
