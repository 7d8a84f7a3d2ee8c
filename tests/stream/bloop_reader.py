"""Runs in Bloop's own virtual environment: reads a table's stream with Bloop, and prints JSON.

    python bloop_reader.py example ENDPOINT    # writes the documented example, and reads it
    python bloop_reader.py read ENDPOINT ARN   # reads a stream, a record a line

Not imported by the tests: Bloop pins an old boto3.
"""

import json
import sys
import time
from typing import Any

import boto3
from bloop import BaseModel, Column, Engine, Integer, String
from bloop.session import SessionWrapper
from bloop.stream.coordinator import Coordinator


def clients(endpoint: str) -> dict[str, Any]:
    common = {
        "endpoint_url": endpoint,
        "region_name": "eu-central-1",
        "aws_access_key_id": "a",
        "aws_secret_access_key": "b",
    }
    return {
        "dynamodb": boto3.client("dynamodb", **common),
        "dynamodbstreams": boto3.client("dynamodbstreams", **common),
    }


class User(BaseModel):
    class Meta:
        table_name = "users"
        stream = {"include": {"new", "old"}}  # noqa: RUF012 - as Bloop documents it

    id = Column(Integer, hash_key=True)
    email = Column(String)


def example(endpoint: str) -> None:
    """`Engine.stream`'s documentation: a new user, a changed one, a deleted one."""
    engine = Engine(**clients(endpoint))
    engine.bind(User)
    user = User(id=3, email="user@domain.com")
    engine.save(user)
    user.email = "admin@domain.com"
    engine.save(user)
    engine.delete(user)
    stream = engine.stream(User, "trim_horizon")
    while record := next(stream):
        images = {image: _user(record[image]) for image in ("new", "old")}
        print(json.dumps({**_meta(record), **images}))


def _user(user: Any) -> Any:
    return user and {"id": user.id, "email": user.email}


def read(endpoint: str, arn: str) -> None:
    """Everything up to a hundred polls without a record; then microseconds of CPU for each."""
    stream = Coordinator(session=SessionWrapper(**clients(endpoint)), stream_arn=arn)
    stream.move_to("trim_horizon")
    idle, found = 0, []
    began = time.process_time()
    while idle < 100:
        record = next(stream)
        idle = 0 if record else idle + 1
        if record:
            found.append(record)
    spent = time.process_time() - began
    for record in found:
        print(json.dumps(_meta(record)))
    print(json.dumps({"seconds": spent, "records": len(found)}))


def _meta(record: Any) -> dict[str, Any]:
    meta = record["meta"]
    return {
        "created_at": meta["created_at"].timestamp(),
        "event": meta["event"],
        "sequence_number": meta["sequence_number"],
    }


if __name__ == "__main__":
    {"example": example, "read": read}[sys.argv[1]](*sys.argv[2:])
