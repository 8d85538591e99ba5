"""What a run is made of, built from its configuration; this part needs no Ray."""

from torch import nn

from ramen_ray.config import EncoderConfig, RunConfig
from ramen_ray.method.metrics.evaluation import Propensity
from ramen_ray.method.model.encoder import Encoder, build_bag, build_transformer
from ramen_ray.method.model.pretrained import load_tokenizer, text_tokenizer
from ramen_ray.method.model.texts import TextTokenizer
from ramen_ray.method.objectives.adaptation import Adaptation
from ramen_ray.method.training.optimization import build_optimizer, build_schedule
from ramen_ray.method.training.step import Objective, TrainState


def build_encoder(config: EncoderConfig) -> Encoder:
    """Build the encoder that training starts from."""
    if config.kind == "bag":
        return build_bag(config.pretrained)
    return build_transformer(config.pretrained, config.pooling, config.num_layers)


def encoder_tokenizer(encoder: EncoderConfig) -> TextTokenizer:
    """Load the tokenizer that goes with an encoder; a bag of tokens takes no special ones."""
    special = encoder.kind == "transformer"
    return text_tokenizer(load_tokenizer(encoder.pretrained), encoder.max_length, special)


def build_objective(config: RunConfig) -> Objective:
    """Take the objective's constants out of the configuration."""
    return Objective(
        config.loss.margin,
        config.loss.num_negatives,
        config.loss.softmax_weighting,
        config.regularization.lambda_x,
        config.regularization.lambda_z,
        config.regularization.every_steps,
    )


def build_propensity(config: RunConfig) -> Propensity:
    """Take the propensity model's constants out of the configuration."""
    return Propensity(config.evaluation.propensity_a, config.evaluation.propensity_b)


def build_state(
    config: RunConfig, encoder: Encoder, model: nn.Module, num_steps: int
) -> TrainState:
    """Build what a run changes as it goes, as it is before the first step.

    Args:
        config: of the run.
        encoder: on the device where it is trained.
        model: what steps call: the encoder, or what spreads it over several workers.
        num_steps: of the whole run.
    """
    rates, regularization = config.optimizer, config.regularization
    optimizer = build_optimizer(encoder, rates.lr, rates.weight_decay, rates.embedding_lr)
    schedule = build_schedule(optimizer, round(rates.warmup_fraction * num_steps), num_steps)
    adaptation = None
    if regularization.adaptive:
        device = next(encoder.parameters()).device
        weights = build_objective(config).weights
        adaptation = Adaptation(weights, regularization.adaptive_step, device)
    return TrainState(model, optimizer, schedule, adaptation=adaptation)
