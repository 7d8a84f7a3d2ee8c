"""Whether changes outlast snapshots; pure."""

from typing import Any

import pytest

from penstock.model.errors import SettingsError
from penstock.snapshots.retention import Kept

MINUTE, DAY = 60 * 10**9, 86_400 * 10**9


def kept(changes: Any, chunks: Any = None) -> Kept:
    return Kept.of("CDC", changes, chunks)


def test_a_minute_of_changes_and_a_week_of_chunks_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"CDC keeps changes for 0:01:00.*rows stay wrong"):
        kept({"max_age": MINUTE}, {"max_age": 7 * DAY}).refuse(1800)
    (finding,) = kept({"max_age": MINUTE}, {"max_age": 7 * DAY}).findings(1800)
    assert finding.level == "error" and "1:00:00 at least" in finding.remedy


def test_the_same_is_a_warning_where_no_snapshot_is_needed() -> None:
    (finding,) = kept({"max_age": 10 * MINUTE}).findings(1800, needed=False)
    assert finding.level == "warning" and finding.code == "snapshots.retention-short"


@pytest.mark.parametrize(
    ("changes", "chunks", "level"),
    [
        (None, None, "ok"),
        ({"max_age": 0}, {"max_age": 7 * DAY}, "ok"),
        ({"max_age": 60 * MINUTE - 1}, {"max_age": 60}, "error"),
        ({"max_age": 60 * MINUTE}, {"max_age": 60 * MINUTE}, "ok"),
        ({"max_age": 60 * MINUTE}, {"max_age": 7 * DAY}, "warning"),
        ({"max_age": 60 * MINUTE}, {"max_age": 0}, "warning"),
        ({"max_bytes": 1000, "max_msgs": -1}, None, "warning"),
        ({"retention": "interest"}, None, "warning"),
        ({"max_msgs_per_subject": 5}, None, "error"),
        ({"max_msgs_per_subject": 5, "discard": "new"}, None, "error"),
        (
            {"max_msgs_per_subject": 5, "discard": "new", "discard_new_per_subject": True},
            None,
            "ok",
        ),
        ({"max_msgs_per_subject": -1}, None, "ok"),
    ],
)
def test_the_rest_is_told(changes: Any, chunks: Any, level: str) -> None:
    (finding,) = kept(changes, chunks).findings(1800)
    assert finding.level == level
