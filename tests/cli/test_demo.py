"""`penstock demo`: which databases it takes."""

import pytest
from click.testing import CliRunner

from penstock import cli


def test_a_demo_of_cosmos_db_is_refused_and_names_the_page_to_read() -> None:
    result = CliRunner().invoke(cli.main, ["demo", "--source", "cosmos"])
    assert result.exit_code == 2
    assert "there is no demo of Cosmos DB" in result.stderr
    assert "docs/how-to/cosmos.md" in result.stderr


@pytest.mark.parametrize("source", ["dynamodb", "mongodb", "postgres"])
def test_every_source_is_in_the_help(source: str) -> None:
    assert source in CliRunner().invoke(cli.main, ["demo", "--help"]).stdout


def test_an_unknown_source_is_a_usage_error_with_the_known_ones() -> None:
    result = CliRunner().invoke(cli.main, ["demo", "--source", "oracle"])
    assert result.exit_code == 2
    assert "'dynamodb', 'mongodb', 'postgres'" in result.stderr
