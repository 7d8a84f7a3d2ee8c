"""Preflight of a PostgreSQL source."""

from penstock.feeds.postgres.settings import PostgresSettings
from penstock.finding import Finding

__all__ = ["check"]


def check(settings: PostgresSettings) -> list[Finding]:
    """Findings."""
    return []
