"""CSR rows against scipy and plain loops."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from support import shares_of

from ramen_ray.data.prepared.csr import Csr

NUM_COLUMNS = 9
weighted_rows = st.lists(
    st.dictionaries(st.integers(0, NUM_COLUMNS - 1), st.integers(1, 8)), min_size=1
)
below_one = st.integers(0, 63).map(lambda n: n / 64) | st.just(np.nextafter(1.0, 0.0))


def _columns(rows):
    """Lay out what rows have as (rows, columns, weights)."""
    entries = [(r, column, weight) for r, row in enumerate(rows) for column, weight in row.items()]
    return np.array(entries, dtype=np.int64).reshape(-1, 3).T


@given(weighted_rows, st.integers(0, 99))
def test_pairs_are_saved_as_scipy_has_them_whatever_their_order(rows, seed):
    row_ids, columns, weights = np.random.default_rng(seed).permutation(_columns(rows), axis=1)
    made = Csr.from_pairs(row_ids, columns, len(rows), weights)
    with TemporaryDirectory() as folder:
        made.save(Path(folder))
        found = Csr.open(Path(folder))
    assert isinstance(found.indices.base, np.memmap)
    assert (found.cumulative_weights is None) == (made.cumulative_weights is None)
    expected = sp.csr_array((weights, (row_ids, columns)), shape=(len(rows), NUM_COLUMNS))
    expected.sort_indices()
    assert found.num_rows == len(rows)
    assert found.indptr.tolist() == expected.indptr.tolist()
    assert found.indices.tolist() == expected.indices.tolist()
    if found.cumulative_weights is None:
        assert len(set(expected.data.tolist())) <= 1
    by_row = np.split(expected.data, expected.indptr[1:-1])
    assert shares_of(found) == [(row / row.sum()).tolist() for row in by_row]


@given(weighted_rows, st.data())
def test_draw_inverts_the_weights_of_the_row_however_much_other_rows_weigh(rows, data):
    per_row = {"min_size": len(rows), "max_size": len(rows)}
    powers = np.array(data.draw(st.lists(st.integers(-100, 100), **per_row)))
    uniforms = data.draw(st.lists(below_one, **per_row))
    row_ids, columns, weights = _columns(rows)
    weights = np.ldexp(weights.astype(np.float64), powers[row_ids])
    csr = Csr.from_pairs(row_ids, columns, len(rows), weights)
    expected = []
    for row, uniform in zip(rows, uniforms, strict=True):
        rest = uniform * sum(row.values())
        chosen = -1
        for column in sorted(row):
            chosen = column
            if rest < row[column]:
                break
            rest -= row[column]
        expected.append(chosen)
    assert csr.draw(np.arange(len(rows)), np.array(uniforms)).tolist() == expected
