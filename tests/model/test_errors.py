"""The code of an error: written where it is raised, and nothing else decides it."""

import ast

import penstock
from penstock.cli.explain import made_by
from penstock.model import errors
from penstock.model.errors import Malformed, SettingsError, Unavailable
from tests.docs.pages import ROOT

_FILES = sorted((ROOT / "penstock").rglob("*.py"))


def test_the_same_line_has_the_same_code_in_any_folder() -> None:
    line = "error = SettingsError('the slot is taken', 'postgres.slot-taken')"
    made = []
    for module in ("penstock.feeds.postgres.slot", "penstock.tables.postgres", "penstock.cli.run"):
        names: dict[str, object] = {"__name__": module, "SettingsError": SettingsError}
        exec(line, names)
        made.append(names["error"])
    assert {getattr(error, "code", "") for error in made} == {"postgres.slot-taken"}


def test_a_settings_error_made_while_an_outage_is_handled_has_its_own_code() -> None:
    try:
        raise Unavailable("the server is away", "nats.server-away")
    except Unavailable as outage:
        error = SettingsError(f"no stream: {outage.message}", "jetstream")
    assert error.code == "jetstream.settings"


def test_a_part_alone_takes_the_name_of_the_class() -> None:
    assert Malformed("bytes", "wire").code == "wire.malformed"
    assert errors.InvalidPosition("a place", "stream").code == "stream.invalid-position"


def test_an_error_of_a_plug_in_may_have_no_code() -> None:
    assert str(SettingsError("no folder", hint="make it")) == "no folder (make it) [settings]"
    assert penstock.Unavailable("away").code == "unavailable"


def _kinds() -> set[str]:
    """The classes of errors of the package, by name."""
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for file in _FILES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    kinds = {"PenstockError"}
    while more := {name for name in bases.keys() - kinds if bases[name] & kinds}:
        kinds |= more
    return kinds


def test_each_place_that_makes_an_error_or_a_finding_writes_its_code() -> None:
    kinds = _kinds() - {"HistoryLost", "BadArgument"}  # these two have theirs from their class
    parts = {file.parent.name for file in _FILES}
    without = []
    for file in _FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and (called := made_by(node))):
                continue
            codes = [each.value for each in node.keywords if each.arg == "code"]
            if kinds.intersection(called):
                codes += node.args[1:2]
            elif called != ["finding"] or ast.unparse(node.args[0]) == "'ok'":
                continue
            code = codes[0] if codes else ast.Constant("")
            if isinstance(code, ast.Constant) and str(code.value).split(".")[0] not in parts:
                without.append(f"{file}:{node.lineno}: {code.value}")
    assert without == []
