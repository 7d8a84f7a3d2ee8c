"""Feeds, sinks, layouts and stores are found through entry points; ours use the same door."""

import re
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import Distribution, EntryPoint, distribution, entry_points
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson

from penstock.model.errors import SettingsError

# Modules of packages that have another name.
_BROUGHT_BY = {
    "azure": "azure-cosmos", "bson": "pymongo", "botocore": "boto3", "dns": "dnspython",
    "opentelemetry": "opentelemetry-sdk", "py4j": "pyspark",
}  # fmt: skip


def known(kind: str) -> list[str]:
    """The names of all installed plug-ins of a kind: `feeds`, `sinks`, `layouts` or `stores`."""
    _installed.cache_clear()
    return sorted({point.name for point in _installed().select(group=f"penstock.{kind}")})


def is_known(kind: str, name: str) -> bool:
    """Whether a plug-in of that name is installed."""
    return _point(f"penstock.{kind}", name) is not None


@cache
def plugin(kind: str, name: str) -> Any:
    """The plug-in of that name; raises SettingsError that names the known ones or the extra."""
    if (point := _point(f"penstock.{kind}", name)) is not None:
        try:
            return point.load()
        except ModuleNotFoundError as error:
            what = f"{name!r} needs the module {error.name!r}"
            raise _missing(error, point.dist, what) from error
    names = known(kind)
    near = [f"did you mean {each!r}? " for each in get_close_matches(name, names, n=1)]
    hint = f"{''.join(near)}known: {', '.join(names)}"
    raise SettingsError(
        f"there is no {kind.removesuffix('s')} {name!r}", "process.plug-in-unknown", hint=hint
    )


def _point(group: str, name: str) -> EntryPoint | None:
    if not (found := _installed().select(group=group, name=name)):
        _installed.cache_clear()  # it may have come since
        found = _installed().select(group=group, name=name)
    return next(iter(found), None)


@cache
def _installed() -> Any:
    """The entry points of all packages (the class depends on the version of Python). Read once: a
    process of Spark's has jars on its path, in which looking for packages takes a tenth of a
    second. Forks have what the fork server read."""
    return entry_points()


def driver(module: str) -> Any:
    """A module that only some installations have; raises SettingsError that names the extra."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        what = f"this needs the module {error.name!r}"
        raise _missing(error, distribution("penstock-cdc"), what) from None


def _missing(error: ModuleNotFoundError, package: Distribution | None, what: str) -> SettingsError:
    module = str(error.name)
    needed = installed_by(module, package) if package else None
    hint = f"pip install '{needed or module.partition('.')[0]}'"
    return SettingsError(f"{what}, which is not installed", "process.module-missing", hint=hint)


def installed_by(module: str, package: Distribution) -> str | None:
    """What pip installs a module by: the first extra of the package that requires it, if any."""
    top = module.partition(".")[0]
    wanted = _BROUGHT_BY.get(top, top.replace("_", "-"))
    for requirement in package.requires or ():
        found = re.match(r"([\w.-]+).*extra == \W(.+)\W", requirement)
        if found and found[1].replace("_", "-") == wanted:
            return to_install(found[2], package)
    return None


def to_install(extra: str, package: Distribution | None = None) -> str:
    """What pip installs an extra of ours by: the package's name, or the folder that the package was
    installed from."""
    package = package or distribution("penstock-cdc")
    url = orjson.loads(package.read_text("direct_url.json") or "{}")
    folder = unquote(urlsplit(url["url"]).path) if "dir_info" in url else package.name
    return f"{folder}[{extra}]"
