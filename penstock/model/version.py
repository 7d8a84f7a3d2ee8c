"""The version of the installed package, which pyproject.toml says, and where it is explained."""

from importlib.metadata import version

__version__ = version("penstock-cdc")
DOCS = "https://penstock-cdc.github.io/penstock/latest"
