from collections.abc import Callable
from datetime import UTC, datetime
from datetime import date as calendar_date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.pgoutput.values.times import date, timestamp, timestamptz


@given(moment=st.datetimes())
def test_usual_moments_read_back_the_same(moment: datetime) -> None:
    written = f"{moment:%Y-%m-%d %H:%M:%S}".rjust(19, "0")
    if moment.microsecond:
        written += f".{moment.microsecond:06d}".rstrip("0")
    assert datetime.fromisoformat(timestamp(written.encode())) == moment
    aware = timestamptz(f"{written}+00".encode())
    assert aware.endswith("Z")
    assert datetime.fromisoformat(aware) == moment.replace(tzinfo=UTC)


@given(day=st.dates())
def test_usual_days_are_as_they_are(day: calendar_date) -> None:
    assert date(day.isoformat().encode()) == day.isoformat()


@pytest.mark.parametrize(
    ("convert", "written", "value"),
    [
        (date, "0001-12-31 BC", "0000-12-31"),
        (date, "0002-01-01 BC", "-000001-01-01"),
        (date, "4714-11-24 BC", "-004713-11-24"),
        (date, "10000-01-01", "+010000-01-01"),
        (date, "5874897-12-31", "+5874897-12-31"),
        (date, "infinity", "infinity"),
        (date, "-infinity", "-infinity"),
        (timestamp, "0044-03-15 12:00:00.5 BC", "-000043-03-15T12:00:00.5"),
        (timestamp, "294276-12-31 23:59:59.999999", "+294276-12-31T23:59:59.999999"),
        (timestamp, "infinity", "infinity"),
        (timestamptz, "4713-01-01 00:00:00+00 BC", "-004712-01-01T00:00:00Z"),
        (timestamptz, "294276-12-31 23:59:59.999999+00", "+294276-12-31T23:59:59.999999Z"),
        (timestamptz, "-infinity", "-infinity"),
        (timestamptz, "2026-01-02 03:04:05+02", "2026-01-02T03:04:05+02"),
        (timestamptz, "2026-01-02 03:04:05-03:30", "2026-01-02T03:04:05-03:30"),
    ],
)
def test_unusual_moments_stay_iso_8601(
    convert: Callable[[bytes], str], written: str, value: str
) -> None:
    assert convert(written.encode()) == value


@pytest.mark.parametrize("written", ["", "01/02/2026", "Fri Jan 02 03:04:05 2026 UTC", "later"])
def test_another_date_style_is_a_value_error(written: str) -> None:
    for convert in (date, timestamp, timestamptz):
        if convert is date and len(written) == 10:
            continue
        with pytest.raises(ValueError, match="DateStyle ISO"):
            convert(written.encode())
