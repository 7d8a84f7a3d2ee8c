"""The Spark job of the how-to page on MongoDB runs, and goes on from its checkpoint."""

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pymongo
import pytest

from tests.pipeline.running import SHORT_LIVED, environment, json_messages
from tests.servers import Nats, Secantus

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(900)]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "mongodb.md"


@pytest.mark.thorough  # the library example is such a job, too, and is run by the suite
def test_the_job_of_the_page_goes_on_after_a_kill_and_repeats_nothing(
    nats: Nats, tmp_path: Path
) -> None:
    (job,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "job.py").write_text(job)
    written = 0
    with Secantus() as server, pymongo.MongoClient(server.url) as client:
        env = environment(
            MONGO_URL=server.url, NATS_URL=nats.url, JDK_JAVA_OPTIONS=SHORT_LIVED,
            PYSPARK_PYTHON=sys.executable,
        )  # fmt: skip
        for _ in range(2):
            away = written - 1  # written while the job was away
            with (tmp_path / "log").open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "job.py"], env=env, cwd=tmp_path, stdout=log, stderr=log
                )
            try:
                deadline = time.monotonic() + 250
                # The first time any message says that it has begun.
                while away not in numbers(nats) if away >= 0 else not numbers(nats):
                    assert process.poll() is None, (tmp_path / "log").read_text()[-4000:]
                    assert time.monotonic() < deadline, (tmp_path / "log").read_text()[-4000:]
                    write(client, written)
                    written += 1
                    time.sleep(0.2)
            finally:
                process.kill()
                process.wait(60)
            write(client, written)
            written += 1
    found = numbers(nats)
    assert found[::2] == found[1::2] == list(range(found[0], found[-1] + 1))
    operations = [body["operation"] for body in json_messages(nats, "ORDERS")]
    assert operations == ["INSERT", "UPDATE"] * (len(found) // 2)


def numbers(nats: Nats) -> list[Any]:
    return [body["key"]["_id"] for body in json_messages(nats, "ORDERS")]


def write(client: "pymongo.MongoClient[dict[str, Any]]", number: int) -> None:
    """Two changes for the job, in one transaction; one that it leaves out; one of a collection that
    it does not follow."""
    shop = client.shop
    with client.start_session() as session, session.start_transaction():
        shop.orders.insert_one({"_id": number, "paid": False}, session=session)
        shop.orders.update_one({"_id": number}, {"$set": {"paid": True}}, session=session)
    shop.orders.delete_one({"_id": number - 1})
    shop.others.insert_one({"_id": number})
