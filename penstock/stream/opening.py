"""Opens an iterator from the name of a feed and its settings."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, TypeVar, Unpack, overload

from pydantic import ValidationError

from penstock.feeds import Feed, FeedPlugin, complete
from penstock.model.change import OnError
from penstock.model.errors import PenstockError, SettingsError
from penstock.model.problems import refused
from penstock.model.settings import Settings
from penstock.process.plugins import plugin
from penstock.stream.coordinator import BUFFER
from penstock.stream.models import table_of
from penstock.stream.options import (
    CosmosOptions,
    DynamodbOptions,
    MemoryOptions,
    MongodbOptions,
    PostgresOptions,
)
from penstock.stream.record import Image
from penstock.stream.stream import Stream

Given = TypeVar("Given", bound=Settings)

log = logging.getLogger("penstock")

# Settings of feeds that take a table, in order of preference; all but the first are lists.
_TABLES = ("table", "tables", "collections")


# A feed of your own has no overload by its name: give the feed itself.
# fmt: off
@overload
def stream(
    kind: Literal["cosmos"], *, at: Any = ..., model: type[Image] | None = ...,
    table: str | None = ..., on_error: OnError = ..., buffer: int = ...,
    **settings: Unpack[CosmosOptions],
) -> Stream[Image]: ...
@overload
def stream(
    kind: Literal["dynamodb"], *, at: Any = ..., model: type[Image] | None = ...,
    table: str | None = ..., on_error: OnError = ..., buffer: int = ...,
    **settings: Unpack[DynamodbOptions],
) -> Stream[Image]: ...
@overload
def stream(
    kind: Literal["memory"], *, at: Any = ..., model: type[Image] | None = ...,
    table: str | None = ..., on_error: OnError = ..., buffer: int = ...,
    **settings: Unpack[MemoryOptions],
) -> Stream[Image]: ...
@overload
def stream(
    kind: Literal["mongodb"], *, at: Any = ..., model: type[Image] | None = ...,
    table: str | None = ..., on_error: OnError = ..., buffer: int = ...,
    **settings: Unpack[MongodbOptions],
) -> Stream[Image]: ...
@overload
def stream(
    kind: Literal["postgres"], *, at: Any = ..., model: type[Image] | None = ...,
    table: str | None = ..., on_error: OnError = ..., buffer: int = ...,
    **settings: Unpack[PostgresOptions],
) -> Stream[Image]: ...
@overload
def stream(
    kind: Feed, *, at: Any = ..., model: type[Image] | None = ..., on_error: OnError = ...,
    buffer: int = ...,
) -> Stream[Image]: ...
# fmt: on
def stream(
    kind: str | Feed,
    *,
    at: Any = None,
    model: Any = None,
    table: str | None = None,
    on_error: OnError = "stop",
    buffer: int = BUFFER,
    **settings: Any,
) -> Stream[Any]:
    """Opens an iterator over a feed: `stream("dynamodb", table="users", at="latest")`.

    `kind` is a feed's name, as `type` in a pipeline file, and `settings` are its keys; or it is a
    feed. `table`: one table of it, else the model's `Meta.table_name`. For the others, and the
    errors, see `Stream`. Raises SettingsError for wrong settings.
    """
    table = table or table_of(model)
    feed = feed_of(kind, settings, table)
    opened = Stream(feed, at=at, model=model, on_error=on_error, buffer=buffer)
    if isinstance(kind, str) and table is not None:
        _warn_of_no_table(feed, table)
    return opened


def _warn_of_no_table(feed: Feed, table: str) -> None:
    """A table may come later; but a name with a mistake gives no record, and no error."""
    with suppress(PenstockError):  # a role that may read changes need not see tables
        if (tables := feed.tables()) is not None and not tables:
            log.warning(
                "the feed %r has no table %r now, so that no record comes: correct the name, or add"
                " the table to what the source sends (PostgreSQL: to the publication)",
                feed.backend,
                table,
            )


def feed_of(kind: str | Feed, settings: Mapping[str, Any], table: str | None = None) -> Feed:
    """The feed of that name, for one table if given; or the feed. No I/O; raises SettingsError."""
    if not isinstance(kind, str):
        return complete(kind)
    found: FeedPlugin = plugin("feeds", kind)
    fields = dict(settings)
    if table is not None and not fields.get("stream"):  # an ARN names its table
        fields |= _table(found.settings, kind, table)
    return found.feed(settings_of(found.settings, fields))


def settings_of(model: type[Given], fields: Mapping[str, Any]) -> Given:
    """Raises SettingsError, which repeats no value."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        texts = [value for value in fields.values() if isinstance(value, str)]
        raise refused(error, model, texts) from None


def _table(settings: type[Settings], kind: str, table: str) -> dict[str, Any]:
    for name in _TABLES:
        if name in settings.model_fields:
            return {name: table if name == "table" else (table,)}
    raise SettingsError(
        f"the feed {kind!r} has no tables to choose from", "stream", hint="leave `table` out"
    )
