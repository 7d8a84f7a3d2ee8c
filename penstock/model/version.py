"""The version of the installed package, which pyproject.toml says."""

from importlib.metadata import version

__version__ = version("penstock-cdc")
