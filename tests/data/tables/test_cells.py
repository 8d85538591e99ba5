"""Numbers and times in cells."""

import pandas as pd
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


MOMENT = pd.Timestamp("2026-03-01 10:30:15.25", tz="UTC")
TIMES: dict[str, tuple[pa.Array, float]] = {
    "ISO 8601": (pa.array(["2026-03-01 10:30:15.25"]), MOMENT.timestamp()),
    "a T and a Z": (pa.array(["2026-03-01T10:30:15.25Z"]), MOMENT.timestamp()),
    "a zone": (pa.array(["2026-03-01T12:30:15.25+02:00"]), MOMENT.timestamp()),
    "a zone without a colon": (pa.array(["2026-03-01 05:00:15.25-0530"]), MOMENT.timestamp()),
    "as warehouses write it": (pa.array(["2026-03-01 10:30:15.250000 UTC"]), MOMENT.timestamp()),
    "no seconds": (pa.array(["2026-03-01T10:30Z"]), MOMENT.floor("min").timestamp()),
    "a day": (pa.array(["2026-03-01"]), MOMENT.floor("D").timestamp()),
    "a number as text": (pa.array([str(MOMENT.timestamp())]), MOMENT.timestamp()),
    "a number": (pa.array([MOMENT.timestamp()]), MOMENT.timestamp()),
    "a datetime": (pa.array([MOMENT.tz_localize(None).to_pydatetime()]), MOMENT.timestamp()),
    "far away": (pa.array([10**15], pa.timestamp("s")), 1e15),
    **{
        unit: (pa.array([1772361000 * per_second + more], pa.timestamp(unit)), 1772361000.0)
        for unit, per_second, more in (
            ("s", 1, 0),
            ("ms", 10**3, 0),
            ("us", 10**6, 0),
            ("ns", 10**9, 1),
        )
    },
}


@pytest.mark.parametrize("case", TIMES)
def test_times_in_all_their_forms(case):
    column, expected = TIMES[case]
    seconds, bad = as_seconds(pa.chunked_array([column]))
    assert seconds.tolist() == pytest.approx([expected], abs=1e-6)
    assert not bad.any()


def test_what_is_not_a_time():
    _, bad = as_seconds(pa.chunked_array([["2026-03-01", "2026-13-01", "noon", None]]))
    assert bad.tolist() == [False, True, True, True]
