"""Tables in S3, of moto's server and of SeaweedFS, which fail as S3 does."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from penstock.demo.sources.dynamodb import Moto
from penstock.model.errors import Unavailable
from penstock.sinks.delta import DeltaSink, DeltaSinkSettings
from tests.progress import Noted
from tests.servers.seaweed import Fault, FaultyS3, Seaweed
from tests.sinks.postgres.test_write import rows_of

pytestmark = pytest.mark.live
LOGIN = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "us-east-1"}


@pytest.fixture(scope="module", params=["moto", "seaweed"])
def endpoint(request: pytest.FixtureRequest) -> Iterator[str]:
    with Moto() if request.param == "moto" else Seaweed() as server:
        yield str(server.url)


@pytest.fixture(scope="module")
def faulty() -> Iterator[FaultyS3]:
    with Seaweed() as server, FaultyS3(server.port) as before:
        yield before


class Bucket:
    """A sink into a bucket of its own, and how to read it."""

    def __init__(self, endpoint: str, folder: Path, **table: Any) -> None:
        self.name = uuid.uuid4().hex
        boto3.client(
            "s3", endpoint_url=endpoint, region_name=LOGIN["AWS_REGION"],
            aws_access_key_id="any", aws_secret_access_key="any",
        ).create_bucket(Bucket=self.name)  # fmt: skip
        self.options = {**LOGIN, "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true",
                        "aws_conditional_put": "etag", "backoff_config.init_backoff": "100ms",
                        "backoff_config.max_backoff": "200ms"}  # fmt: skip
        self._folder, self._mapped = folder, table

    @property
    def sink(self) -> DeltaSink:
        return DeltaSink(DeltaSinkSettings.model_validate({
            "location": f"s3://{self.name}/{{schema}}/{{table}}",
            "ledger": self._folder / "lake.db", "options": self.options, "every": "20ms",
            "map": [{"backend": "default", "tables": {"items": self._mapped}}],
        }))  # fmt: skip

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(f"s3://{self.name}/public/items", storage_options=self.options)


def test_a_table_in_s3_has_one_commit_after_another(endpoint: str, tmp_path: Path) -> None:
    bucket = Bucket(endpoint, tmp_path)
    sink = bucket.sink
    batches = [rows_of("INSERT 1 one", "INSERT 2 two"), rows_of("UPDATE 1 uno", commit=2)]
    sink.write(batches, Noted())
    sink.write(batches, Noted())
    first, second = bucket.table, bucket.table
    rows = first.to_pyarrow_table()
    assert sorted(row["name"] for row in rows.to_pylist()) == ["two", "uno"]
    once = CommitProperties(max_commit_retries=0)
    write_deltalake(first, rows, mode="append", commit_properties=once)
    with pytest.raises(CommitFailedError):
        write_deltalake(second, rows, mode="append", commit_properties=once)


@pytest.mark.fault
@pytest.mark.parametrize("fault", ["refused", "lost", "slow"])
@pytest.mark.parametrize("kind", ["log", "clone"])
def test_a_change_is_there_once_whatever_the_storage_does(
    faulty: FaultyS3, tmp_path: Path, kind: str, fault: Fault
) -> None:
    """Also where the answer to the put of a commit is lost: it is tried again, and refused."""
    bucket = Bucket(faulty.url, tmp_path, type=kind)
    faulty.done.clear()
    count = 5
    for number in range(1, count + 1):
        batch = rows_of(f"INSERT {number} n{number}", commit=number)
        faulty.faults[:] = [fault] * (number % 3)
        for _ in range(20):
            try:
                bucket.sink.write([batch], Noted())
                break
            except Unavailable:
                continue
        faulty.faults.clear()
    assert len(faulty.done) > 3
    found = bucket.table.to_pyarrow_table().select(["id", "name"]).to_pylist()
    assert sorted(row["id"] for row in found) == [*range(1, count + 1)]
    assert next(iter(bucket.sink.tables()))["state"] == "live"
