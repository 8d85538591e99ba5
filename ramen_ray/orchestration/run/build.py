"""Build the parts of a run from its configuration; this module does not need Ray."""

import logging
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from ramen_ray.config import ConfigError, EncoderConfig, RunConfig
from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.errors import DatasetError
from ramen_ray.method.distributed import gather_arrays, is_first_worker, own_range
from ramen_ray.method.metrics.ground_truth import GroundTruth, Propensity
from ramen_ray.method.model.dual_encoder import (
    CLASSIFIER_FOLDER,
    HEAD_FOLDER,
    DualEncoder,
    Scoring,
)
from ramen_ray.method.model.encoder import Encoder, build_bag, build_transformer
from ramen_ray.method.model.heads import Classifiers, Head
from ramen_ray.method.model.sentence_folder import open_encoder
from ramen_ray.method.objectives.adaptation import AdaptiveWeights, untestable
from ramen_ray.method.objectives.judged import JudgedPart, graded_term
from ramen_ray.method.objectives.losses import Loss, SoftmaxLoss, TripletLoss
from ramen_ray.method.objectives.terms import (
    Objective,
    Term,
    bce_term,
    classifier_reverse_term,
    classifier_term,
    own_similarity,
    ramen_objective,
    reverse_term,
    similarity_to_other_texts,
    task_term,
)
from ramen_ray.method.sampling.batches import Sampler, SamplingSources
from ramen_ray.method.sampling.curriculum import ClusterSchedule, Curriculum
from ramen_ray.method.sampling.encoded import StepPart
from ramen_ray.method.sampling.training_data import JudgedAds, Regularizer, TrainingData
from ramen_ray.method.training.classifier_training import ClassifierPart, ClassifierTraining
from ramen_ray.method.training.state import TrainState, build_optimizer, build_schedule

PROJECTION_SEED = 0
CLASSIFIER_HEAD_SEED = 1
ADS_TO_CENTRE_ON = 4096

logger = logging.getLogger(__name__)


def build_model(config: RunConfig) -> DualEncoder:
    """Build the model that training starts from; its classifiers, if any, are built apart."""
    encoder = build_encoder(config.encoder)
    width = encoder.width
    cut = config.encoder.dim
    dim = config.encoder.projection_dim
    if encoder.projection is None and cut is not None:
        encoder.projection = Head.cut(width, cut)
    elif encoder.projection is None and dim is not None:
        encoder.projection = Head.orthogonal(width, dim, True, config.seed + PROJECTION_SEED)
    if config.base.parts.heads == "none":
        return DualEncoder(encoder)
    model = DualEncoder(encoder, _classifier_head(config, encoder))
    model.scoring = Scoring(config.classifier.weight, config.classifier.text_scale)
    return model


def _classifier_head(config: RunConfig, encoder: Encoder) -> Head:
    """Build the head that asks classifiers; that of the run which has the encoder goes on."""
    folder = Path(config.encoder.pretrained).parent / HEAD_FOLDER
    if folder.is_dir():
        head = Head.load(folder)
        if (head.linear.in_features, head.dim) == (encoder.width, encoder.dim):
            return head
    seed = config.seed + CLASSIFIER_HEAD_SEED
    return Head.orthogonal(encoder.width, encoder.dim, False, seed)


def build_encoder(config: EncoderConfig) -> Encoder:
    """Build the encoder that training starts from, with no head but its own projection, if any."""
    if config.kind == "bag":
        encoder: Encoder = build_bag(config.pretrained)
    else:
        encoder = build_transformer(config.pretrained, config.pooling, config.num_layers)
    folder = open_encoder(config.pretrained, config.kind)
    encoder.prompts = folder.choose_prompts(config.query_prompt, config.ad_prompt)
    return encoder


def build_classifiers(
    config: RunConfig, model: DualEncoder, data: Prepared, carried: Int64s | None = None
) -> Classifiers:
    """Build the classifiers that training starts from: the head's vectors of the ads' texts.

    Where ``carried`` (ads,) is not -1, an ad starts from that classifier of the encoder's own run.
    A transformer's new head is centred on the ads.
    """
    num_ads = len(data.ads)
    head = model.classifier_head
    if config.encoder.kind == "transformer" and head is not None and not head.linear.bias.any():
        # The states of a transformer have much in common, which would drown what tells ads apart.
        # Every worker looks at the same ads, so that all have the same head.
        spread = np.linspace(0, num_ads - 1, min(num_ads, ADS_TO_CENTRE_ON)).astype(np.int64)
        model.centre_classifier_head(data.ads, spread)
    ads = own_range(num_ads)
    vectors = model.classifier_vectors(data.ads, ads)
    if carried is not None:
        before = Classifiers.open(Path(config.encoder.pretrained).parent / CLASSIFIER_FOLDER)
        is_carried = carried[ads] >= 0
        vectors[is_carried] = before.take(carried[ads][is_carried]).numpy()
    settings = config.classifier
    if not settings.sharded:
        vectors = np.concatenate(gather_arrays(vectors))
    is_clicked = np.asarray(data.train_click_counts) > 0
    is_trained = is_clicked if settings.unclicked == "text" else np.ones(num_ads, dtype=bool)
    first = int(ads[0]) if settings.sharded else 0
    return Classifiers(torch.from_numpy(vectors).to(model.device), first, is_trained)


def held_classifiers(config: RunConfig, data: Prepared) -> range | None:
    """Return the ads whose classifiers this worker trains; None for all."""
    if not config.classifier.sharded:
        return None
    ads = own_range(len(data.ads))
    return range(int(ads[0]), int(ads[-1]) + 1)


def build_objective(config: RunConfig) -> Objective:
    """Build the terms that a run minimises."""
    constants = config.loss
    triplet = TripletLoss(constants.margin, constants.num_negatives, constants.softmax_weighting)
    weights = config.regularization
    task = _task_terms(config, triplet)
    return ramen_objective(triplet, weights.lambda_x, weights.lambda_z, weights.every_steps, task)


def _task_terms(config: RunConfig, triplet: TripletLoss) -> list[Term]:
    """Build the terms of the task: UniDEC's equations 3 to 6, or the triplet loss alone."""
    parts = config.base.parts
    settings = config.classifier
    reverse = config.loss.reverse_share
    encoder_share = 1.0 if parts.heads == "none" else 1 - settings.share

    def loss(temperature: float) -> Loss:
        is_decoupled = parts.loss == "decoupled"
        return triplet if parts.loss == "triplet" else SoftmaxLoss(temperature, is_decoupled)

    encoder_loss = loss(config.loss.temperature)
    classifier_loss = loss(settings.temperature)
    by_cosine = parts.loss == "triplet"
    takes_all = config.loss.own_text_negatives
    similarity_of = own_similarity if takes_all else similarity_to_other_texts
    terms = [task_term(encoder_loss, encoder_share * (1 - reverse), similarity_of=similarity_of)]
    if reverse:
        terms.append(reverse_term(encoder_loss, encoder_share * reverse))
    if parts.heads == "classifier":
        share = settings.share
        terms.append(classifier_term(classifier_loss, share * (1 - reverse), by_cosine))
        if reverse:
            terms.append(classifier_reverse_term(classifier_loss, share * reverse))
        if settings.bce:
            terms.append(bce_term(settings.temperature, share * settings.bce))
    if config.judged.graded:
        temperature = None if parts.loss == "triplet" else config.loss.temperature
        terms.append(graded_term(config.judged.graded, temperature))
    return terms


def build_propensity(config: RunConfig) -> Propensity:
    """Return the propensity model of the metrics."""
    return Propensity(config.evaluation.propensity_a, config.evaluation.propensity_b)


def build_ground_truth(config: RunConfig, data: Prepared, split: str) -> GroundTruth:
    """Return the judge of what is found for a split's queries."""
    return GroundTruth.from_prepared(data, split, build_propensity(config))


def build_training_data(
    config: RunConfig,
    data: Prepared,
    regularizers: Iterable[Regularizer] = (),
    edges: Path | None = None,
) -> TrainingData:
    """Map what a run trains on, by what is judged; for ``edges`` see TrainingData.from_prepared.

    Raises a DatasetError if there is no judgement by one of the sources that are asked for, and a
    ConfigError if there is none but is to be learnt from.
    """
    settings = config.judged
    needs_judgements = settings.as_positives or settings.graded > 0
    ads = None
    if settings.num_negatives or needs_judgements:
        judged = data.judgements("train", settings.sources)
        if judged is not None:
            ads = JudgedAds.from_judgements(judged, len(data.query_ids), settings.as_positives)
        elif needs_judgements:
            name = "as_positives" if settings.as_positives else "graded"
            raise ConfigError(
                f"judged.{name} needs judgements of the train queries of {data.metadata['name']}; "
                f"import some with jobs/ingest.py tables --judged, or leave it"
            )
    return TrainingData.from_prepared(data, regularizers, edges, ads)


def build_sampler(config: RunConfig, data: Prepared, training_data: TrainingData) -> Sampler:
    """Build the sampler that draws a run's batches.

    Raises a DatasetError if clicks do not fill a batch, a ConfigError if no query has enough.
    """
    parts = config.base.parts
    batch = config.training.global_batch_size
    name = data.metadata["name"]
    most = int(np.diff(training_data.clicks.indptr).max())
    if parts.num_positives > most:
        raise ConfigError(
            f"base.num_positives {parts.num_positives} is more than any query of {name} led to: "
            f"the most is {most}"
        )
    num_queries = len(training_data.clicked_rows)
    if num_queries < batch:
        raise DatasetError(
            f"{name} has {num_queries} train queries with clicks, fewer than "
            f"training.global_batch_size {batch}"
        )
    has_shortlists = parts.hard_negatives == "shortlists"
    clicks = data.weighted_clicks if config.training.sampling == "clicks" else None
    judged = training_data.judged
    drawn = None
    if judged is not None:
        clicks = None if clicks is None else judged.applied_to(clicks)
        if config.judged.num_negatives:
            drawn = judged.pairs if config.judged.graded else judged.low
    return Sampler(
        training_data,
        batch,
        config.seed,
        clicks,
        parts.num_hard_negatives if has_shortlists else 0,
        config.regularization.nodes,
        parts.num_positives,
        config.judged.num_negatives,
        drawn,
        parts.heads == "none" or not config.classifier.own_hard_negatives,
    )


def cluster_schedule(config: RunConfig) -> ClusterSchedule:
    """Return when clusters of queries are made, and how large they are."""
    base = config.base
    training = config.training
    size = base.cluster_size
    double_at = base.double_cluster_size_at
    if base.parts.order == "batch_clusters":
        size = training.global_batch_size
        double_at = ()
    return ClusterSchedule(
        base.first_clustered_epoch, base.refresh_every, size, double_at, training.epochs
    )


def build_state(
    config: RunConfig,
    model: DualEncoder,
    trained: nn.Module,
    sampler: Sampler,
    objective: Objective,
) -> TrainState:
    """Build the state before the first step; steps call ``trained``, the model or its wrapper."""
    rates = config.optimizer
    regularization = config.regularization
    device = model.device
    num_steps = sampler.steps_per_epoch * config.training.epochs
    heads = [head for head in (model.encoder.projection, model.classifier_head) if head is not None]
    optimizer = build_optimizer(
        model.encoder, rates.lr, rates.weight_decay, rates.embedding_lr, heads, rates.head_lr
    )

    def scheduled(optimizer: torch.optim.Optimizer) -> LRScheduler:
        warmup_steps = round(rates.warmup_fraction * num_steps)
        return build_schedule(optimizer, warmup_steps, num_steps, rates.decay)

    parts: list[StepPart] = []
    if sampler.data.judged is not None:
        parts.append(JudgedPart(sampler.data.judged, device))
    if model.classifiers is not None:
        lr = config.classifier.lr
        parts.append(ClassifierPart(ClassifierTraining(model.classifiers, lr, scheduled)))
    if regularization.adaptive and objective.regularizers:
        step_size = regularization.adaptive_step
        steps = sampler.steps_per_epoch
        untested = untested_graphs(config, sampler.data)
        parts.append(AdaptiveWeights(objective, step_size, steps, device, untested))
    if config.base.parts.order != "random":
        schedule = cluster_schedule(config)
        parts.append(Curriculum(schedule, sampler, model.encoder.dim, device))
    sources = SamplingSources(sampler.data.graphs)
    return TrainState(trained, optimizer, scheduled(optimizer), sources, parts=parts)


def untested_graphs(config: RunConfig, training_data: TrainingData) -> list[Regularizer]:
    """Return the graphs whose adaptive weights start without a test, and name exceptions."""
    if config.base.parts.loss == "triplet":
        return [*training_data.graphs]
    untested = untestable(training_data)
    if is_first_worker():
        for graph in untested:
            logger.warning(
                "%s: hardly any of its nodes have clicks to test it by; it starts at a tenth of λ",
                graph.name,
            )
    return untested


def use_bf16(config: RunConfig, device: torch.device) -> bool:
    """Say whether a run encodes under bfloat16 autocast on a device."""
    precision = config.training.precision
    return precision == "bf16" or (precision == "auto" and device.type == "cuda")
