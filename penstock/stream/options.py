"""The settings of each feed as keywords of `penstock.stream`, for type checkers. Made from the
settings: python -m tests.stream.options
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from pydantic import SecretStr


class CosmosOptions(TypedDict, total=False):
    name: str
    on_gap: Literal["fail", "resnapshot", "continue"]
    start: str | Mapping[str, Any]
    polled: bool
    poll: float | str
    connect_timeout: float | str
    endpoint: str
    key: str | SecretStr | None
    database: str
    container: str
    mode: Literal["latest_version", "all_versions_and_deletes"]
    tenant: str
    system_properties: bool
    page_items: int
    timeout: float | str


class DynamodbOptions(TypedDict, total=False):
    name: str
    on_gap: Literal["fail", "continue", "resnapshot"]
    start: str | Mapping[str, Any]
    polled: bool
    poll: float | str
    connect_timeout: float | str
    stream: str
    region: str | None
    endpoint: str | None
    profile: str | None
    access_key: str | SecretStr | None
    secret_key: str | SecretStr | None
    session_token: str | SecretStr | None
    tenant: str
    reads: int
    look_ups: float
    scan_units: float
    timeout: float | str


class MemoryOptions(TypedDict, total=False):
    name: str
    changes: int
    partitions: int
    page: int
    unit: int
    latency: float | str
    polled: bool


class MongodbOptions(TypedDict, total=False):
    name: str
    on_gap: Literal["fail", "continue", "resnapshot"]
    connection: str | SecretStr
    database: str
    collections: Sequence[str]
    exclude_collections: Sequence[str]
    full_document: Literal["update_lookup", "required", "when_available", "off"]
    before: Literal["off", "when_available", "required"]
    start: str
    tenant: str
    flatten: bool
    page_size: int | str
    page_rows: int
    page_wait: float | str
    connect_timeout: float | str
    silence: float | str


class PostgresOptions(TypedDict, total=False):
    name: str
    on_gap: Literal["fail", "continue", "resnapshot"]
    connection: str | SecretStr
    sid: str
    sources: Sequence[Mapping[str, Any]]
    slot: str
    publication: str
    create_publication: bool
    tables: Sequence[str]
    start: Literal["slot", "snapshot"]
    failover: bool
    tenant: str
    values: Literal["typed", "bridge", "text"]
    heartbeat: float | str | None
    streaming: bool
    memory: int | str
    spill: str | Path | None
    page_size: int | str
    page_rows: int
    page_wait: float | str
    connect_timeout: float | str
    silence: float | str
