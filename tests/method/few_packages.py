"""A short training with shortlists, and its evaluation, by ``ramen_ray.method`` alone."""

from pathlib import Path
from typing import Any

from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.metrics.judgement import Propensity, evaluate
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.encoder import build_bag
from ramen_ray.method.objectives.losses import TripletLoss
from ramen_ray.method.objectives.terms import ramen_objective
from ramen_ray.method.retrieval.shortlists import open_shortlists, write_shortlists
from ramen_ray.method.sampling.batches import DrawState, Sampler
from ramen_ray.method.sampling.training_data import TrainingData
from ramen_ray.method.training.state import TrainState, build_optimizer, build_schedule
from ramen_ray.method.training.step import train_steps


def train(encoder: Path, prepared: Path, shortlists: Path) -> dict[str, Any]:
    """Train six steps, the last three with hard negatives; returns all that can be seen of it."""
    data, model = Prepared(prepared), DualEncoder(build_bag(str(encoder)))
    objective = ramen_objective(TripletLoss(0.3, 4), {"links": 0.3}, {"links": 0.3})
    training_data = TrainingData.from_prepared(data, objective.regularizers)
    sampler = Sampler(training_data, 16, seed=3, num_hard_negatives=2)
    optimizer = build_optimizer(model.encoder, 2e-2, 0.01)
    schedule = build_schedule(optimizer, 1, 9)
    state = TrainState(model, optimizer, schedule, DrawState(training_data.graphs))
    list(train_steps(state, sampler, objective, 3))
    # All ads: if some had to be left out, which of equally good ones would not be known.
    write_shortlists(model, data, len(data.ads), shortlists)
    mined = open_shortlists(shortlists)
    state.draws = DrawState(training_data.graphs, shortlists=mined[:, :6])
    losses = [step.tolist() for step in train_steps(state, sampler, objective, 6)]
    metrics, (ads, _) = evaluate(model, data, "test", Propensity())
    return {
        "losses": losses,
        "metrics": metrics,
        "ads": ads.tolist(),
        "shortlists": mined.tolist(),
    }
