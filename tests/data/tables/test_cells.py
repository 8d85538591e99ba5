"""Numbers and times in cells; lines in other encodings than UTF-8, and what is told apart."""

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramen_ray.data.tables.reading.cells import as_numbers, as_seconds
from ramen_ray.data.tables.reading.lines import decoded


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


WESTERN = """Größe|Straßenbahn Überführung|crème brûlée|déçu…|café – “à la carte”|«Âgé»|ÅÄÖ|“…”
“noir” – l’œuvre à 5 €|¿Qué pasó? ¡Señor!|ação coração|smørrebrød på øen|façade—naïveté ™ ®
£££ sale °°°|Ünïcödé""".replace("\n", "|").split("|")
OTHERS = [
    ("cp1251", ["туфли", "красные туфли", "купить дом в Москве", "Nike кроссовки"]),
    ("koi8-r", ["туфли", "красные туфли", "Nike кроссовки"]),
    ("iso8859-7", ["παπούτσια", "κόκκινα παπούτσια"]),
    ("cp1255", ["נעליים אדומות"]),
    ("cp1256", ["حذاء أحمر"]),
    ("tis-620", ["รองเท้าสีแดง"]),
    ("gbk", ["红鞋", "你好", "红色的鞋子", "iPhone手机壳", "北京到上海的火车票"]),
    ("big5", ["手機", "紅色的鞋子", "iPhone手機殼"]),
    (
        "shift_jis",
        ["カメラ", "ノート", "すし", "東京", "大阪", "赤い靴を買う", "ノートパソコン 15"],
    ),
    ("euc_jp", ["カメラ", "東京", "赤い靴を買う"]),
    ("euc_kr", ["신발", "빨간 신발", "iPhone 케이스"]),
]


@pytest.mark.parametrize("text", WESTERN)
def test_windows_1252_is_read_as_itself(text):
    lines = f"a\n{text}\nb\n"
    assert decoded(lines.encode("cp1252")) == (lines.encode(), [1], [])


@pytest.mark.parametrize(
    ("encoding", "text"), [(encoding, text) for encoding, texts in OTHERS for text in texts]
)
def test_other_encodings_are_told_from_windows_1252(encoding, text):
    assert decoded(f"shoes\n{text}\n".encode(encoding))[1:] == ([], [1])


def test_only_bytes_that_are_not_utf8_are_read_in_another_way():
    line = "日本 привет café ".encode() + "café “x”".encode("cp1252")
    found = decoded(line + b"\n" + "éé".encode())
    assert found == ("日本 привет café café “x”\néé".encode(), [0], [])
    for text in ("日本", "привет", "größe", "παπούτσι"):  # cut in the middle of a letter
        cut, _, strange = decoded(text.encode()[:-1] + b"\n")
        assert cut.decode().startswith(text[:-1])
        assert not strange
    assert decoded(b"one \x81 byte") == ("one \x81 byte".encode(), [], [0])


@given(st.lists(st.binary(max_size=9), max_size=9))
def test_any_bytes_become_utf8_line_by_line(lines):
    content = b"\n".join(lines)
    found, western, strange = decoded(content)
    assert found.decode().count("\n") == content.count(b"\n")
    changed = zip(content.split(b"\n"), found.split(b"\n"), strict=True)
    assert western + strange == [row for row, (one, other) in enumerate(changed) if one != other]
    assert not (western and strange)
