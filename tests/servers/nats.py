"""The demo's nats-server with a configuration of the test's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.demo.nats_server import Nats as DemoNats


class Nats(DemoNats):
    """A nats-server with JetStream; `config` is its configuration file, on top of ours.

    Nested mappings are merged; `{"jetstream": False}` turns JetStream off.
    """

    def __init__(
        self, folder: Path | str | None = None, config: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(folder)
        self.config = dict(config or {})
        self._name = str(self.config.get("server_name", self._name))

    def _configuration(self) -> dict[str, Any]:
        return _merged(super()._configuration(), self.config)


def _merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(ours)
    for name, value in theirs.items():
        mine = merged.get(name)
        both = isinstance(mine, Mapping) and isinstance(value, Mapping)
        merged[name] = _merged(mine, value) if both else value  # type: ignore[arg-type]
    return merged
