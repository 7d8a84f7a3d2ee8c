"""Changes for the tests that send them over a connection of their own."""

from tests.sinks.conftest import batch_of

__all__ = ["batch_of"]
