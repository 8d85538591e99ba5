"""Which texts count as equal: case, white space and Unicode form do not matter."""

import unicodedata

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramen_ray.data.store.same_texts import fold, normalized

INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u2060\ufeff"))


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("Red Heron", "red heron"),
        ("red heron", " red\t \nheron\x0b"),
        ("red heron", "red\u00a0heron"),  # no-break space
        ("red heron", "red\u2003\u2028heron"),  # em space, line separator
        ("caf\u00e9", "CAFE\u0301"),  # one letter, or a letter and an accent
        ("heron 7", "\uff28eron\u3000\uff17"),  # full width
        ("red heron", "\ufeffred\u2060 her\u00adon\u200b"),  # of no width
    ],
)
def test_spellings_of_one_text_fold_alike(text, other):
    first, second = fold(pa.array([text, other])).to_pylist()
    assert first == second


@given(st.lists(st.none() | st.text(), min_size=1))
def test_normal_form_is_that_of_pythons_own_words(texts):
    expected = [
        None
        if text is None
        else " ".join(unicodedata.normalize("NFKC", text).translate(INVISIBLE).split())
        for text in texts
    ]
    assert normalized(pa.array(texts, pa.string())).to_pylist() == expected
