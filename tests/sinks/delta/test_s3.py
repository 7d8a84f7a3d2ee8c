"""Tables in S3, of moto's server."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from penstock.demo.sources.dynamodb import Moto
from penstock.sinks.delta import DeltaSink, DeltaSinkSettings
from tests.progress import Noted
from tests.sinks.postgres.test_write import rows_of

LOGIN = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with Moto() as server:
        yield str(server.url)


@pytest.mark.live
def test_a_table_in_s3_has_one_commit_after_another(endpoint: str, tmp_path: Path) -> None:
    bucket = uuid.uuid4().hex
    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name=LOGIN["AWS_REGION"],
        aws_access_key_id="any", aws_secret_access_key="any",
    )  # fmt: skip
    client.create_bucket(Bucket=bucket)
    options = {**LOGIN, "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true",
               "aws_conditional_put": "etag"}  # fmt: skip
    sink = DeltaSink(DeltaSinkSettings.model_validate({
        "location": f"s3://{bucket}/{{schema}}/{{table}}", "ledger": tmp_path / "lake.db",
        "options": options, "every": "20ms",
        "map": [{"backend": "default", "tables": {"items": {}}}],
    }))  # fmt: skip
    batches = [rows_of("INSERT 1 one", "INSERT 2 two"), rows_of("UPDATE 1 uno", commit=2)]
    sink.write(batches, Noted())
    sink.write(batches, Noted())
    first, second = (
        DeltaTable(f"s3://{bucket}/public/items", storage_options=options) for _ in range(2)
    )
    rows = first.to_pyarrow_table()
    assert sorted(row["name"] for row in rows.to_pylist()) == ["two", "uno"]
    once = CommitProperties(max_commit_retries=0)
    write_deltalake(first, rows, mode="append", commit_properties=once)
    with pytest.raises(CommitFailedError):
        write_deltalake(second, rows, mode="append", commit_properties=once)
