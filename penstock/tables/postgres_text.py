"""Values as PostgreSQL writes them, where psycopg's own types lose something."""

from typing import Any

from psycopg.adapt import AdaptersMap
from psycopg.types.string import TextLoader

from penstock.model.images import JsonText


class _JsonLoader(TextLoader):
    def load(self, data: Any) -> JsonText:
        return JsonText(bytes(data).decode())


def keep_text(adapters: AdaptersMap) -> None:
    """Has psycopg return the text of json, jsonb and intervals, which its own types lose."""
    for name, loader in (("json", _JsonLoader), ("jsonb", _JsonLoader), ("interval", TextLoader)):
        adapters.register_loader(name, loader)
