"""How a program in another environment is asked: pickled plain values over its pipes."""

import os
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

Packed = tuple[tuple[int, int], bytes, bytes, bytes]
"""A sparse matrix as shape, int64 row starts, int32 columns and float32 values.

Arrays themselves would be pickled in the form of one version of numpy.
"""
Predict = Callable[[csr_matrix, int], Sequence[Sequence[int]]]
Train = Callable[[csr_matrix, csr_matrix, dict[str, Any], int, int, Path], Predict]


def unpack(packed: Packed) -> csr_matrix:
    """Return the matrix that was packed."""
    shape, starts, columns, values = packed
    return csr_matrix(
        (
            np.frombuffer(values, dtype=np.float32).copy(),
            np.frombuffer(columns, dtype=np.int32).copy(),
            np.frombuffer(starts, dtype=np.int64).copy(),
        ),
        shape=shape,
    )


def serve(train: Train) -> None:
    """Train once, then answer until the other side closes the pipe.

    ``train`` gets features, labels, settings, seed, threads and a folder for the model; it returns
    a function of features and k that gives the best labels of each row.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the packages print goes beside the answers
    features, labels, *rest = pickle.load(sys.stdin.buffer)
    predict = train(unpack(features), unpack(labels), *rest)
    _send(answers, None)
    while True:
        try:
            rows, k = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        _send(answers, [[int(label) for label in row] for row in predict(unpack(rows), k)])


def _send(answers: Any, value: Any) -> None:
    pickle.dump(value, answers)
    answers.flush()
