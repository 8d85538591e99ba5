"""Numbers and times in cells."""

import pyarrow as pa
import pytest

from ramen_ray.data.tables.reading.cells import as_numbers, as_seconds


def test_numbers_and_what_is_not_a_number():
    texts = [" 1.5", "-2", "1e3", ".5", "x", "", None, "nan", "inf", "1,5", "0x1"]
    numbers, bad = as_numbers(pa.chunked_array([texts]))
    assert numbers[:4].tolist() == [1.5, -2.0, 1000.0, 0.5]
    assert bad.tolist() == [False] * 4 + [True] * 7
    _, bad = as_numbers(pa.chunked_array([pa.array([1, None, 3])]))
    assert bad.tolist() == [False, True, False]


DAY = 1772323200
MINUTE = 1772361000
TIMES = {
    "2026-03-01": DAY,
    "2026-03-01T10:30Z": MINUTE,
    "2026-03-01 10:30:15.25": MINUTE + 15.25,
    "2026-03-01T12:30:15.25+02:00": MINUTE + 15.25,
    "2026-03-01 05:00:15.25-0530": MINUTE + 15.25,
    "2026-03-01 10:30:15.250000 UTC": MINUTE + 15.25,  # as warehouses write it
    "1772361015.25": MINUTE + 15.25,
    "2026-13-01": None,
    "noon": None,
}


def test_times_in_all_their_forms_and_what_is_not_a_time():
    seconds, bad = as_seconds(pa.chunked_array([[*TIMES, None]]))
    assert bad.tolist() == [time is None for time in [*TIMES.values(), None]]
    assert seconds[~bad].tolist() == [time for time in TIMES.values() if time is not None]
    assert as_seconds(pa.chunked_array([[MINUTE + 0.25]]))[0].tolist() == [MINUTE + 0.25]


@pytest.mark.parametrize(
    ("unit", "count"),
    [("s", MINUTE), ("ms", MINUTE * 10**3), ("us", MINUTE * 10**6), ("ns", MINUTE * 10**9 + 1)],
)
def test_timestamps_of_any_unit_are_seconds(unit, count):
    seconds, _ = as_seconds(pa.chunked_array([pa.array([count], pa.timestamp(unit))]))
    assert seconds.tolist() == pytest.approx([MINUTE], abs=1e-6)
