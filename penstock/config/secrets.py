"""The secrets in settings, so that logs can leave them out."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import BaseModel, SecretStr

# NATS takes a token in the place of a user.
_TOKEN_SCHEMES = frozenset({"nats", "tls", "ws", "wss"})
_WEBHOOK = re.compile(r"(?i)^https?://[^/?]*([/?].+)")
_SECRET_PARAMETERS = frozenset({"password", "sslpassword", "token"})


def secrets_of(settings: BaseModel) -> set[str]:
    """Every secret text inside, at any depth. Of a URL only what is secret in it: its password
    (as written and decoded), or a token; a webhook's path, which alone lets anyone post there."""
    return {part for value in _values(settings) for part in _parts(value) if part}


def _values(value: Any) -> Iterator[str]:
    if isinstance(value, SecretStr):
        text = value.get_secret_value()
        yield text
        yield from _WEBHOOK.findall(text)
    elif isinstance(value, str) and "://" in value:
        yield value  # a store's URL: it may have a password
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _values(getattr(value, name))
    elif isinstance(value, dict):
        for item in value.values():
            yield from _values(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _values(item)


def _parts(text: str) -> Iterator[str]:
    if "://" not in text or text[0] in "/?":
        yield text
        return
    for url in text.split(",") if text.count("://") > 1 else [text]:
        try:
            found = urlsplit(url.strip())
            token = found.username if found.scheme in _TOKEN_SCHEMES else None
            secret = found.password if found.password is not None else token
            query = parse_qsl(found.query)
        except ValueError:
            yield url
            continue
        yield from (secret or "", unquote(secret or ""))
        yield from (value for key, value in query if key in _SECRET_PARAMETERS)
