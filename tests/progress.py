"""A sink's progress as tests look at it."""

from penstock.testing.sinks import Noted

__all__ = ["Noted"]
