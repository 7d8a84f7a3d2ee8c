"""The page on clusters is true: its settings are settings, and its options are Spark's."""

import pytest

from penstock.config import parse_pipeline
from tests.docs.pages import DOCS, blocks

PAGE = (DOCS / "how-to" / "cluster.md").read_text()
PIPELINE = """
backends: [{type: memory}]
sink: {type: memory}
"""
ENVIRONMENT = {"POSITIONS_URL": "postgresql://host/db", "POD_IP": "10.0.0.1"}
BLOCKS = blocks(PAGE, "yaml")


def test_the_page_has_pipeline_settings() -> None:
    assert len(BLOCKS) == 5


@pytest.mark.parametrize("block", BLOCKS)
def test_every_block_is_a_part_of_a_pipeline_file(block: str) -> None:
    pipeline = parse_pipeline(PIPELINE + block, environment=ENVIRONMENT)
    assert pipeline.spark.conf
