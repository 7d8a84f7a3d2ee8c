"""Places to start from, as the command line writes them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from penstock.consumer.tail.start import ALL, NEW, Since, Start, parse_start
from penstock.model.errors import SettingsError

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", ALL),
        ("new", NEW),
        ("1234", 1234),
        ("-10", -10),
        ("10m", Since(time=NOW - timedelta(minutes=10))),
        ("2026-11-21", Since(time=datetime(2026, 11, 21, tzinfo=UTC))),
        ("2026-11-21T10:00:00Z", Since(time=datetime(2026, 11, 21, 10, tzinfo=UTC))),
        (
            "2026-11-21T10:00:00+02:00",
            Since(time=datetime(2026, 11, 21, 10, tzinfo=timezone(timedelta(hours=2)))),
        ),
    ],
)
def test_every_way_to_write_a_start_is_understood(text: str, expected: Start) -> None:
    assert parse_start(text, NOW) == expected


@pytest.mark.parametrize("text", ["", "0", "-0", "yesterday", "--5", "1.5"])
def test_anything_else_is_a_settings_error_that_lists_the_ways(text: str) -> None:
    with pytest.raises(SettingsError, match="the last ten"):
        parse_start(text, NOW)
