"""What every worker of a combiner does: build its parts, train them, and evaluate them."""

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from ramen_ray.bases import Part
from ramen_ray.data.arrays import map_array
from ramen_ray.data.prepared.folder import Prepared, TokenTable
from ramen_ray.data.store.made_folder import whole_file, write_json
from ramen_ray.errors import UserError
from ramen_ray.method.distributed import array_from_first_worker, is_first_worker
from ramen_ray.method.metrics.ground_truth import Propensity
from ramen_ray.method.model.dual_encoder import (
    DualEncoder,
    TextEmbeddings,
    load_model,
    number_distinct,
)
from ramen_ray.method.model.heads import Classifiers
from ramen_ray.method.new_ads.combiner_training import (
    COMBINED,
    CombinerModel,
    CombinerPart,
    bce,
    clicks_on,
    compared_with,
    nearest_unclicked,
    training_data,
)
from ramen_ray.method.new_ads.evaluation import Embedded, Evaluation, compare_rows
from ramen_ray.method.new_ads.neighbours import (
    Lookup,
    Ranked,
    SeenAds,
    clicked_together,
)
from ramen_ray.method.new_ads.representation import (
    COMBINER_FOLDER,
    CombinedAds,
    Combiner,
    open_combined_ads,
)
from ramen_ray.method.objectives.losses import TripletLoss
from ramen_ray.method.objectives.terms import CLASSIFIERS, Objective, task_term
from ramen_ray.method.sampling.batches import Clusters, Sampler, SamplingSources
from ramen_ray.method.sampling.curriculum import balanced_clusters
from ramen_ray.method.training.classifier_training import ClassifierTraining
from ramen_ray.method.training.state import TrainState, build_schedule, head_groups
from ramen_ray.method.training.step import StepMemoryError
from ramen_ray.orchestration.embed import embed_distinct
from ramen_ray.orchestration.new_ads.settings import CombineSettings, IreneVariant
from ramen_ray.orchestration.run.directory import IDENTITY_FILE
from ramen_ray.orchestration.run.loop import Plan, Setup, start_or_resume, train
from ramen_ray.orchestration.run.processes import WorkerContext, prepare_process
from ramen_ray.tracking.runs import Run

NUM_CHECKPOINTS = 10
NUM_NEGATIVES = 10
WEIGHT_DECAY = 0.01
CLUSTERS_PER_BATCH = 8  # as in the released code, up to rounding


@dataclass(frozen=True)
class CombineTask:
    """The task of training a combiner: plain values; paths that all machines can reach."""

    settings: CombineSettings
    model: Path  # folder of the run's best model
    part: Part  # which of its vectors answer
    prepared: Path
    embeddings: Path
    folder: Path  # where the result goes
    propensity: Propensity
    run: Run

    def train(self, worker: WorkerContext) -> Evaluation | None:
        """Train to the end; the first worker then writes the combiner, and evaluates as served."""
        prepare_process(self.settings.seed, self.settings.workers)
        data = Prepared(self.prepared)
        folder = self.folder
        model = load_model(self.model, part=self.part)
        embedded = open_embedded(model, data, self.embeddings)
        setup = combiner_setup(self.settings, embedded, model, folder, worker)
        training = start_or_resume(setup, self.run)
        try:
            train(training)
        except StepMemoryError as error:
            raise UserError(str(error)) from error
        if not is_first_worker():
            return None
        setup.combined_ads(training.model).save(folder / COMBINER_FOLDER)
        combined = open_combined_ads(folder / COMBINER_FOLDER)
        return compare_rows(embedded, combined, self.propensity)


@dataclass(frozen=True, kw_only=True)
class CombinerSetup(Setup[CombinerModel]):
    """What a worker trains a combiner with."""

    settings: CombineSettings
    variant: IreneVariant  # the one of the settings, with what they set instead
    queries: TextEmbeddings  # of the train queries
    ads: TextEmbeddings  # of the seen ads, in rows of the same array
    seen: SeenAds  # with the classifiers that training starts from
    first_steps: int  # that train classifiers only; the combiner's come after

    def new_model(self) -> CombinerModel:
        """Build the model that training starts from, on this worker's device."""
        device = self.worker.device
        vectors = torch.from_numpy(self.seen.classifiers.copy()).to(device)
        classifiers = Classifiers(vectors, 0, np.ones(len(vectors), dtype=bool))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            kind = self.variant.kind
            heads = self.settings.combiner.heads
            combiner = Combiner(kind, vectors.shape[1], heads).to(device)
        return CombinerModel(combiner, classifiers, self.ads)

    def open_model(self, checkpoint: Path) -> CombinerModel:
        """Open the model of a checkpoint."""
        model = self.new_model()
        model.load(checkpoint)
        return model

    def new_state(self, model: CombinerModel) -> TrainState:
        """Build what changes besides the model, as it is before the first step."""
        combiner = self.settings.combiner
        first = self.settings.classifiers
        start = self.first_steps
        is_frozen = self.variant.loss == "bce"
        num_moved = start if is_frozen else self.plan.total_steps
        training = ClassifierTraining(
            model.classifiers,
            first.lr,
            partial(build_schedule, warmup_steps=0, total_steps=num_moved),
        )
        part = CombinerPart(
            model,
            training,
            self._neighbours(),
            start,
            self._draws,
            is_frozen,
        )
        groups = head_groups([model], combiner.lr, WEIGHT_DECAY)
        num_steps = self.plan.total_steps - start
        optimizer = torch.optim.AdamW(groups, lr=combiner.lr, eps=1e-6)
        warmup = round(combiner.warmup_fraction * num_steps)
        schedule = build_schedule(optimizer, warmup, num_steps, first_step=start)
        return TrainState(model, optimizer, schedule, SamplingSources({}), parts=[part])

    def save_model(self, model: CombinerModel, checkpoint: Path) -> None:
        """Write the combiner; the part that trains the classifiers writes these."""
        model.save(checkpoint)
        write_json(checkpoint / IDENTITY_FILE, identity_of(self.folder))

    def _neighbours(self) -> Ranked:
        """Return the neighbours (S, K) of the seen ads in training."""
        seen = self.seen
        combiner = self.settings.combiner
        if self.variant.neighbours_by == "clicks":
            clicks = self.sampler.data.clicks
            return clicked_together(clicks, seen.embeddings, combiner.neighbours)
        return seen.nearest(seen.embeddings, combiner.neighbours, np.arange(len(seen.ids)))

    def _draws(self, sources: SamplingSources, are_first: bool) -> SamplingSources:
        """Let steps draw hard negatives if they are of the first, or else from clusters."""
        shortlists = sources.shortlists
        clusters = sources.clusters
        if are_first and shortlists is None:
            clicks = self.sampler.data.clicks
            count = self.settings.classifiers.hard_negatives
            shortlists = nearest_unclicked(self.queries, clicks, self.seen, count)
        if not are_first:
            shortlists = None
            if self.variant.has_clusters and clusters is None:
                clusters = self._clusters()
        return replace(sources, shortlists=shortlists, clusters=clusters)

    def _clusters(self) -> Clusters:
        """Cluster the train queries, for negatives that are hard; a batch holds several."""
        clicked = self.sampler.data.clicked_rows
        count = min(CLUSTERS_PER_BATCH * self.sampler.steps_per_epoch, len(clicked))
        rows = np.empty_like(clicked)
        if is_first_worker():
            vectors = torch.from_numpy(self.queries.take(clicked))
            rows = balanced_clusters(vectors, count, self.settings.seed).rows
        return Clusters(array_from_first_worker(rows), count)

    def combined_ads(self, model: CombinerModel) -> CombinedAds:
        """Return the representation of ads by what has been trained, on the CPU."""
        combiner = self.settings.combiner
        lookup = Lookup(combiner.neighbours, combiner.shortlist, self.variant.threshold)
        self.seen.classifiers = model.classifiers.vectors.detach().cpu().numpy()
        return CombinedAds(deepcopy(model.combiner).cpu().eval(), self.seen, lookup)


def identity_of(folder: Path) -> dict[str, str]:
    """Return what tells a combiner from others: its folder's name hashes all that decides it."""
    return {"combiner": folder.name}


def combiner_setup(
    settings: CombineSettings,
    embedded: Embedded,
    model: DualEncoder | None,
    folder: Path,
    worker: WorkerContext,
) -> CombinerSetup:
    """Build what training needs besides the model; ads with enough train clicks are the seen ones.

    Classifiers begin as those of ``model``, if it answers by them, or else as the ads' texts.
    """
    data = embedded.data
    queries = embedded.queries["train"]
    ids = np.flatnonzero(data.train_click_counts >= settings.classifiers.min_clicks)
    ads = replace(embedded.ads, positions=embedded.ads.positions[ids])
    vectors = ads.take(np.arange(len(ids)))
    classifiers = vectors if model is None else model.with_classifiers(vectors, ids)
    drawn = training_data(data.query_ids, clicks_on(data, ids), queries, ads)
    size = settings.combiner.batch_size
    num_negatives = settings.classifiers.hard_negatives
    sampler = Sampler(drawn, size, settings.seed, num_hard_negatives=num_negatives)
    has_classifiers = model is not None and model.part != "encoder"
    variant = settings.chosen_variant(has_classifiers)
    first_steps = variant.classifier_epochs * sampler.steps_per_epoch
    plan = _plan(first_steps, settings.combiner.epochs, sampler.steps_per_epoch)
    return CombinerSetup(
        folder=folder,
        worker=worker,
        plan=plan,
        objective=_objective(settings, variant, first_steps, plan.total_steps),
        sampler=sampler,
        advice="lower combiner.lr, or classifiers.lr",
        settings=settings,
        variant=variant,
        queries=queries,
        ads=ads,
        seen=SeenAds(ids, vectors, classifiers),
        first_steps=first_steps,
    )


def _plan(first_steps: int, epochs: int, steps_per_epoch: int) -> Plan:
    """Plan checkpoints at about every tenth of the epochs, and where the combiner's begin."""
    total = first_steps + epochs * steps_per_epoch
    every = max(total // steps_per_epoch // NUM_CHECKPOINTS, 1) * steps_per_epoch
    return Plan(steps_per_epoch, sorted({*range(every, total, every), first_steps, total} - {0}))


def _objective(
    settings: CombineSettings, variant: IreneVariant, first_steps: int, total_steps: int
) -> Objective:
    """Build the terms: that of the first steps, and those of the others."""
    combiner = settings.combiner
    first = settings.classifiers
    alone = range(first_steps)
    others = range(first_steps, total_steps)
    terms = []
    if first_steps:
        similarity = compared_with(CLASSIFIERS, first.dropout)
        hinge = TripletLoss(first.margin, NUM_NEGATIVES)
        terms.append(task_term(hinge, 1.0, "classifiers", similarity, alone))
    loss = bce if variant.loss == "bce" else TripletLoss(combiner.margin, NUM_NEGATIVES)
    terms.append(task_term(loss, 1.0, "combiner", compared_with(COMBINED), others))
    if variant.loss == "triplet":
        hinge = TripletLoss(combiner.classifier_margin, NUM_NEGATIVES)
        similarity = compared_with(CLASSIFIERS)
        terms.append(task_term(hinge, 1.0, "combiner_classifiers", similarity, others))
    return Objective(tuple(terms))


def embed_texts(model: Path, part: Part, data: Prepared, file: Path, num_threads: int) -> None:
    """Write the embeddings of all texts of queries and ads into ``file``, unless it exists."""
    if file.exists():
        return
    with whole_file(file) as aside:
        embed_distinct(model, _tables(data), aside, False, num_threads, part)


def open_embedded(model: DualEncoder, data: Prepared, file: Path) -> Embedded:
    """Map what :func:`embed_texts` wrote."""
    tables = [TokenTable.open(folder) for folder in _tables(data)]
    vectors = map_array(file)
    *queries, ads = (TextEmbeddings(vectors, places) for places in number_distinct(tables)[1])
    by_split = dict(zip(data.splits, queries, strict=True))
    return Embedded(data, by_split, replace(ads, scales=model.text_scales))


def _tables(data: Prepared) -> list[Path]:
    tokens = data.path / "tokens"
    return [*(tokens / "queries" / split for split in data.splits), tokens / "ads"]
