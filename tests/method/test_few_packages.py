"""Training steps, evaluation and shortlists need few packages: no Ray, no MLflow, no faiss."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ramen_ray.data.arrays import map_array
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.metrics.ground_truth import Propensity, evaluate
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.encoder import build_bag
from ramen_ray.method.objectives.losses import TripletLoss
from ramen_ray.method.objectives.terms import ramen_objective
from ramen_ray.method.retrieval.shortlists import write_shortlists
from ramen_ray.method.sampling.batches import Sampler, SamplingSources
from ramen_ray.method.sampling.training_data import TrainingData
from ramen_ray.method.training.state import TrainState, build_optimizer, build_schedule
from ramen_ray.method.training.step import train_steps

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

from test_few_packages import train

train(*map(Path, arguments))
"""


def train(encoder, prepared, shortlists):
    """Train six steps, the last three with hard negatives, and evaluate."""
    data = Prepared(prepared)
    model = DualEncoder(build_bag(str(encoder)))
    objective = ramen_objective(TripletLoss(0.3, 4), {"links": 0.3}, {"links": 0.3})
    training_data = TrainingData.from_prepared(data, objective.regularizers)
    sampler = Sampler(training_data, 16, seed=3, num_hard_negatives=2)
    optimizer = build_optimizer(model.encoder, 2e-2, 0.01)
    schedule = build_schedule(optimizer, 1, 9)
    state = TrainState(model, optimizer, schedule, SamplingSources(training_data.graphs))
    list(train_steps(state, sampler, objective, 3))
    write_shortlists(model, data, 6, shortlists)
    state.sources = SamplingSources(training_data.graphs, shortlists=map_array(shortlists))
    list(train_steps(state, sampler, objective, 6))
    evaluate(model, data, "test", Propensity())


@pytest.mark.slow
def test_a_model_is_trained_and_evaluated_without_them(prepared_bag, encoder_path, tmp_path):
    """To the same numbers: test_search compares what is in place of faiss."""
    folder = Path(__file__).parent
    file = tmp_path / "shortlists.npy"
    arguments = [json.dumps(ABSENT), *map(str, (folder, encoder_path, prepared_bag.path, file))]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
