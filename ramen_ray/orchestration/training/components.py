"""Build the parts of a run from its configuration; this module does not need Ray."""

import torch
from torch import nn

from ramen_ray.config import EncoderConfig, RunConfig
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.metrics.judgement import Propensity
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.encoder import build_bag, build_transformer
from ramen_ray.method.model.pretrained import load_tokenizer, text_tokenizer
from ramen_ray.method.model.texts import TextTokenizer
from ramen_ray.method.objectives.adaptation import AdaptiveWeights
from ramen_ray.method.objectives.losses import TripletLoss
from ramen_ray.method.objectives.terms import Objective, ramen_objective
from ramen_ray.method.sampling.batches import Sampler, Sources
from ramen_ray.method.sampling.curriculum import ClusterSchedule, Curriculum
from ramen_ray.method.sampling.training_data import TrainingData
from ramen_ray.method.training.optimization import build_optimizer, build_schedule
from ramen_ray.method.training.step import TrainState


def build_model(config: EncoderConfig) -> DualEncoder:
    """Build the model that training starts from."""
    if config.kind == "bag":
        return DualEncoder(build_bag(config.pretrained))
    return DualEncoder(build_transformer(config.pretrained, config.pooling, config.num_layers))


def encoder_tokenizer(encoder: EncoderConfig) -> TextTokenizer:
    """Load an encoder's tokenizer; a bag of tokens gets no special tokens."""
    special = encoder.kind == "transformer"
    return text_tokenizer(load_tokenizer(encoder.pretrained), encoder.max_length, special)


def build_objective(config: RunConfig) -> Objective:
    """Build the terms that a run minimises."""
    constants = config.loss
    loss = TripletLoss(constants.margin, constants.num_negatives, constants.softmax_weighting)
    weights = config.regularization
    return ramen_objective(loss, weights.lambda_x, weights.lambda_z, weights.every_steps)


def build_propensity(config: RunConfig) -> Propensity:
    """Take the propensity model's constants out of the configuration."""
    return Propensity(config.evaluation.propensity_a, config.evaluation.propensity_b)


def build_sampler(config: RunConfig, data: Prepared, training_data: TrainingData) -> Sampler:
    """Build the sampler that draws a run's batches."""
    base = config.base
    has_shortlists = base.parts.hard_negatives == "shortlists"
    return Sampler(
        training_data,
        config.training.global_batch_size,
        config.seed,
        data.weighted_clicks if config.training.sampling == "clicks" else None,
        base.num_hard_negatives if has_shortlists else 0,
        config.regularization.nodes,
    )


def cluster_schedule(config: RunConfig) -> ClusterSchedule:
    """Return when clusters of queries are made, and how large they are."""
    base = config.base
    return ClusterSchedule(
        base.first_clustered_epoch,
        base.refresh_every,
        base.cluster_size,
        base.double_cluster_size_at,
        config.training.epochs,
    )


def build_state(
    config: RunConfig, model: DualEncoder, trained: nn.Module, sampler: Sampler
) -> TrainState:
    """Build the state that a run changes as it goes, before the first step.

    Args:
        config: the run's.
        model: on the device where it is trained.
        trained: what steps call: the model, or its wrapper for several workers.
        sampler: the run's.
    """
    rates, regularization, device = config.optimizer, config.regularization, model.device
    num_steps = sampler.steps_per_epoch * config.training.epochs
    optimizer = build_optimizer(model.encoder, rates.lr, rates.weight_decay, rates.embedding_lr)
    schedule = build_schedule(optimizer, round(rates.warmup_fraction * num_steps), num_steps)
    state = TrainState(trained, optimizer, schedule, Sources(sampler.data.graphs))
    if regularization.adaptive:
        objective = build_objective(config)
        state.adaptive = AdaptiveWeights(
            objective, regularization.adaptive_max, regularization.adaptive_step, device
        )
    if config.base.parts.order == "clustered":
        state.curriculum = Curriculum(cluster_schedule(config), sampler, model.dim, device)
    return state


def use_bf16(config: RunConfig, device: torch.device) -> bool:
    """Say whether a run encodes under bfloat16 autocast on a device."""
    precision = config.training.precision
    return precision == "bf16" or (precision == "auto" and device.type == "cuda")
