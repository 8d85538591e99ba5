"""Training steps, evaluation and shortlists need few packages: no Ray, no MLflow, no faiss."""

import json
import subprocess
import sys
from pathlib import Path

import few_packages
import numpy as np
import pytest

ABSENT = (
    *("ray", "mlflow", "faiss", "pydantic", "tyro", "numba", "sklearn", "pandas", "matplotlib"),
    "duckdb",
)

WITHOUT = """
import json, sys
from pathlib import Path

absent, folder, *arguments = sys.argv[1:]
sys.modules.update(dict.fromkeys(json.loads(absent)))  # what is None cannot be imported
sys.path.insert(0, folder)

from few_packages import train

print(json.dumps(train(*map(Path, arguments))))
"""


@pytest.mark.slow
def test_without_them_the_results_are_the_same(prepared_bag, encoder_path, tmp_path):
    expected = few_packages.train(encoder_path, prepared_bag.path, tmp_path / "with.npy")
    folder, file = Path(few_packages.__file__).parent, tmp_path / "without.npy"
    arguments = [json.dumps(ABSENT), *map(str, (folder, encoder_path, prepared_bag.path, file))]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for name in ("shortlists", "ads"):
        assert found[name] == expected[name], name
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-6)
    assert found["metrics"] == pytest.approx(expected["metrics"])
