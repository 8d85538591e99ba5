"""The step on a GPU, evaluation and shortlists need few packages: no Ray, MLflow or faiss."""

import pytest
from support import run_python

WITHOUT = """
import runpy, sys

absent = "ray mlflow faiss pydantic tyro numba sklearn pandas matplotlib duckdb"
sys.modules.update(dict.fromkeys(absent.split()))  # what is None cannot be imported
import ramen_ray.method.metrics.ground_truth
import ramen_ray.method.retrieval.shortlists

sys.argv = ["gpu_step", "--smoke", "--rounds", "1"]
runpy.run_module("benchmarks.gpu_step", run_name="__main__")
"""


@pytest.mark.slow
def test_a_step_is_measured_without_them():
    run_python("-c", WITHOUT)
