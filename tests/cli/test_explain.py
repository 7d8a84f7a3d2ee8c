"""What a code means is told without a network, and each code has what to do."""

import json

import pytest
from click.testing import CliRunner, Result

from penstock.cli import main
from penstock.cli.causes import CAUSES
from penstock.cli.explain import Code, codes, raised

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def known() -> dict[str, Code]:
    return codes()


def explained(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["explain", *arguments])


def test_each_code_has_a_remedy(known: dict[str, Code]) -> None:
    without = [
        name
        for name, each in known.items()
        if not each.cause[1] and not any(text.endswith(")") for text in each.texts)
    ]
    assert without == []


def test_causes_are_of_codes_and_say_both(known: dict[str, Code]) -> None:
    assert CAUSES.keys() <= known.keys()
    assert all(cause and remedy for cause, remedy in CAUSES.values())
    assert len(CAUSES) > 60


def test_a_finding_of_a_table_has_the_remedy_of_its_row(known: dict[str, Code]) -> None:
    texts = " ".join(known["postgres.slot-given-up"].texts)
    assert "make it larger than the WAL of the longest outage" in texts
    assert "make it longer than the longest outage" in texts
    assert "wal_level" not in texts


def test_no_name_of_another_loop_or_function_is_a_remedy() -> None:
    """Each remedy of a finding stands in the module, beside its own code."""
    found = [(code, hint) for code, kind, _, hint in raised() if kind in ("warning", "error")]
    assert len(found) > 60
    assert {code for code, hint in found if "wal_level = logical" in hint} == {"postgres.wal-level"}


def test_a_code_is_explained_with_cause_remedy_and_messages() -> None:
    found = explained("postgres.slot-given-up")
    assert found.exit_code == 0
    assert "usually: The server has a limit" in found.output
    assert "remedy: " in found.output
    assert "the server gives up a slot that …" in found.output


def test_a_part_lists_its_codes_and_json_has_all_of_one() -> None:
    found = explained("gap")
    assert found.exit_code == 0
    assert {line.split()[0] for line in found.output.splitlines()} >= {"gap.slot-lost"}
    (one,) = json.loads(explained("gap.slot-lost", "--json").output)
    assert one["code"] == "gap.slot-lost"
    assert one["cause"] and one["remedy"]


def test_a_code_with_a_mistake_names_the_nearest() -> None:
    found = explained("postgres.slot-mising")
    assert found.exit_code == 2
    assert "postgres.slot-missing" in found.stderr
