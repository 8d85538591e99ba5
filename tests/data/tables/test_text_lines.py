"""Lines in other encodings than UTF-8: what is read, and what is told apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramen_ray.data.tables.reading.lines import decoded

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
def test_windows_1252_is_read_as_itself(text: str) -> None:
    found = decoded(f"a\n{text}\nb\n".encode("cp1252"))
    assert found.data.decode() == f"a\n{text}\nb\n"
    assert found.damaged_lines == [1]
    assert found.are_windows_1252


@pytest.mark.parametrize(
    ("encoding", "text"), [(encoding, text) for encoding, texts in OTHERS for text in texts]
)
def test_other_encodings_are_told_from_windows_1252(encoding: str, text: str) -> None:
    assert not decoded(f"shoes\n{text}\n".encode(encoding)).are_windows_1252


def test_only_bytes_that_are_not_utf8_are_read_in_another_way() -> None:
    line = "日本 привет café ".encode() + "café “x”".encode("cp1252")
    found = decoded(line + b"\n" + "éé".encode())
    assert found.data.decode() == "日本 привет café café “x”\néé"
    assert found.damaged_lines == [0]
    assert found.are_windows_1252
    for text in ("日本", "привет", "größe", "παπούτσι"):  # cut in the middle of a letter
        cut = decoded(text.encode()[:-1] + b"\n")
        assert cut.data.decode().startswith(text[:-1])
        assert cut.are_windows_1252


def test_bytes_that_windows_1252_lacks_are_refused() -> None:
    found = decoded(b"one \x81 byte")
    assert found.data.decode() == "one \x81 byte"
    assert not found.are_windows_1252


@given(st.lists(st.binary(max_size=9), max_size=9))
def test_any_bytes_become_utf8_line_by_line(lines: list[bytes]) -> None:
    content = b"\n".join(lines)
    found = decoded(content)
    assert found.data.decode().count("\n") == content.count(b"\n")
    whole = content.split(b"\n")
    damaged = set(range(len(whole))) - set(found.damaged_lines)
    for row, line in enumerate(found.data.split(b"\n")):
        assert (line == whole[row]) == (row in damaged)
