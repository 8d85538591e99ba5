"""Needs of training and of what is made while it goes on: pruned graphs, shortlists, the index."""

import math
from dataclasses import dataclass

from ramen_ray.config import RunConfig
from ramen_ray.method.retrieval.index import SAMPLED_ADS_PER_CELL, choose_kind
from ramen_ray.method.retrieval.search import costs_too_much
from ramen_ray.planning import arrays
from ramen_ray.planning.costs import cost
from ramen_ray.planning.machines import Cluster
from ramen_ray.planning.needs import Need
from ramen_ray.planning.sizes import Encoder, Sizes

FLOAT = 4
STATES = 16  # bytes of a weight, its gradient and two moments
ACTIVATIONS = 34  # bytes of a token, layer and unit of width (Korthikanti et al. 2022)
PAGE = 4096
PAGES_OF_A_TEXT = 4  # its offset, its tokens, its hash, and a node's edges
K_MEANS_ITERATIONS = 10  # faiss's for the cells of an index
CHECKPOINTS = 3


@dataclass(frozen=True)
class Training:
    """A run to plan.

    Attributes:
        sizes: of the dataset.
        encoder: what is trained.
        config: the method: base, graph, batch, epochs.
        cluster: with one worker for each GPU, or one for each machine without.
    """

    sizes: Sizes
    encoder: Encoder
    config: RunConfig
    cluster: Cluster

    @property
    def on_gpu(self) -> bool:
        """Whether GPUs train; a bag of embeddings, which multiplies nothing, is planned on CPUs."""
        return bool(self.cluster.gpus) and self.encoder.layers > 0

    @property
    def num_workers(self) -> int:
        """Workers of the run."""
        return self.cluster.gpus if self.on_gpu else self.cluster.count

    @property
    def steps(self) -> int:
        """Steps of all epochs."""
        training = self.config.training
        return self.sizes.queries // training.global_batch_size * training.epochs

    @property
    def texts_per_query(self) -> float:
        """Texts that a step encodes for each query of its batch, if none repeats.

        The query, its ads, its hard negatives, and for each regulariser an anchor, with a node of
        its own if all of a side's nodes are drawn.
        """
        parts, regularization = self.config.base.parts, self.config.regularization
        ads = parts.num_positives
        if parts.hard_negatives == "shortlists":
            ads += parts.num_hard_negatives
        of_a_set = 2 if regularization.nodes == "clicked" else 3
        return 1 + ads + of_a_set * len(self.sizes.graphs) / regularization.every_steps

    def encoding(self, texts: float, is_training: bool) -> tuple[float, float]:
        """Return processor seconds and GPU seconds that encode ``texts``."""
        operations = self.encoder.operations(texts, self.sizes.tokens, is_training)
        if self.on_gpu:
            rate = self.cluster.machine.gpu_bf16 * cost("gpu_share")
            return 0.0, operations / rate
        by_token = texts * cost("encode_bag_text_s") if not self.encoder.layers else 0.0
        return by_token + operations / cost("core_operations"), 0.0


def train(run: Training) -> Need:
    """All steps: drawing, encoding, products, updates, and the exchange of gradients."""
    texts = run.texts_per_query * run.config.training.global_batch_size
    if run.encoder.layers:
        drawn = run.steps * texts * cost("draw_text_s")
        cpu_s, gpu_s = run.encoding(run.steps * texts, is_training=True)
    else:
        drawn, gpu_s = 0.0, 0.0  # steps were measured whole
        cpu_s = run.steps * texts * cost("bag_text_s")
    states = _state_bytes(run, texts)
    return Need(
        "training",
        cpu_s=cpu_s,
        serial_s=drawn,
        gpu_s=gpu_s,
        memory=cost("ray_bytes") + _order_bytes(run) + (0.0 if run.on_gpu else states),
        mapped=arrays.prepared_bytes(run.sizes),
        gpu_memory=states if run.on_gpu else 0.0,
        disk=CHECKPOINTS * STATES * run.encoder.weights,
        network=_exchanged_bytes(run, texts),
    )


def _exchanged_bytes(run: Training, texts: float) -> float:
    """Gradients to all others and back, embeddings of all texts, and what each machine maps."""
    others = run.cluster.count - 1
    gradients = 2 * others * FLOAT * run.encoder.weights
    embeddings = others * texts * run.encoder.dim * FLOAT
    read = arrays.prepared_bytes(run.sizes) * run.cluster.count if others else 0.0
    return run.steps * (gradients + embeddings) + read


def _state_bytes(run: Training, texts: float) -> float:
    """What a worker holds: weights and moments, activations, classifiers, queries to cluster."""
    encoder, parts = run.encoder, run.config.base.parts
    per_token = ACTIVATIONS * encoder.layers * encoder.dim
    held = STATES * encoder.weights + per_token * texts * run.sizes.tokens / run.num_workers
    if parts.heads == "classifier":
        shares = run.num_workers if run.config.classifier.sharded else 1
        held += arrays.classifier_bytes(run.sizes.ads, encoder.dim) / shares
    if parts.order != "random":
        held += arrays.embedding_bytes(run.sizes.queries, encoder.dim)
    return held


def prune(run: Training) -> Need | None:
    """Prune the graph as often as the schedule says; None if it never does."""
    settings, epochs = run.config.pruning, run.config.training.epochs
    if settings.mode == "never" or epochs <= settings.warmup_epochs or not run.sizes.graphs:
        return None
    times = 1 + (epochs - 1 - settings.warmup_epochs) // settings.every_epochs
    sizes, encoder, walk = run.sizes, run.encoder, run.config.walk
    edges = sizes.edges
    if walk.enabled:
        edges = min(edges * walk.top_k, sizes.nodes * walk.top_k * len(sizes.graphs))
    cpu_s, gpu_s = run.encoding(sizes.texts, is_training=False)
    embeddings = arrays.embedding_bytes(sizes.texts, encoder.dim)
    wide = encoder.dim / 384
    serial = sizes.texts * cost("number_text_s") + edges * wide * cost("prune_edge_s")
    return Need(
        "pruning",
        cpu_s=times * cpu_s,
        serial_s=times * serial,
        gpu_s=times * gpu_s,
        memory=cost("ray_bytes") + 40 * sizes.texts + 30 * edges / (2 * len(sizes.graphs)),
        mapped=embeddings,
        disk=2 * (12 * edges + 8 * sizes.nodes),
        scratch=embeddings,
        network=(2 * times * embeddings) if run.cluster.count > 1 else 0.0,
    )


def mine_shortlists(run: Training) -> Need | None:
    """Search all ads for every train query each time; None if the base makes no shortlists."""
    base, epochs = run.config.base, run.config.training.epochs
    times = (epochs - 1) // base.refresh_every
    if base.parts.hard_negatives == "none" or not times:
        return None
    of_ads = FLOAT * run.sizes.ads * run.encoder.dim
    is_sharded = of_ads > run.config.workers.gb_per_shard * 1e9
    return _search_in_shards(run, times) if is_sharded else _search_in_one_task(run, times)


def _search_in_one_task(run: Training, times: int) -> Need:
    sizes, machine = run.sizes, run.cluster.machine
    cpu_s, gpu_s = run.encoding(sizes.queries + sizes.ads, is_training=False)
    index = 2 * FLOAT * sizes.ads * run.encoder.dim
    if run.on_gpu:
        gpu_s += _products(run) / (machine.gpu_fp32 * cost("gpu_search_share"))
    else:
        cpu_s += _search_s(run)
    return Need(
        "shortlists",
        serial_s=times * cpu_s,
        serial_gpu_s=times * gpu_s,
        memory=cost("ray_bytes") + index,
        gpu_memory=index / 2 if run.on_gpu else 0.0,
        disk=_lists_bytes(run),
        network=_of_several(times * arrays.token_bytes(sizes.nodes, sizes.tokens), run.cluster),
    )


def _search_in_shards(run: Training, times: int) -> Need:
    """All machines embed into the shared folder; actors with a shard each search on CPUs."""
    sizes, gb_per_shard = run.sizes, run.config.workers.gb_per_shard
    cpu_s, gpu_s = run.encoding(sizes.queries + sizes.ads, is_training=False)
    embeddings = FLOAT * (sizes.queries + sizes.ads) * run.encoder.dim
    return Need(
        "shortlists",
        cpu_s=times * (cpu_s + _search_s(run)),
        gpu_s=times * gpu_s,
        memory=cost("ray_bytes") + gb_per_shard * 1e9,
        disk=_lists_bytes(run),
        scratch=embeddings,
        network=_of_several(2 * times * embeddings, run.cluster),
    )


def _search_s(run: Training) -> float:
    """Return the processor seconds of a search, which is approximate if it is too large."""
    sizes = run.sizes
    if costs_too_much(sizes.queries, sizes.ads, run.encoder.dim):
        return sizes.queries * sizes.ads * cost("search_ivf_pq_ad_s")
    return _products(run) / cost("core_search_operations")


def _products(run: Training) -> float:
    return 2.0 * run.sizes.queries * run.sizes.ads * run.encoder.dim


def _lists_bytes(run: Training) -> float:
    return 2 * FLOAT * run.sizes.queries * run.config.base.parts.shortlist_size


def index(run: Training) -> Need:
    """Embed all ads and build the retriever's index, in one process that has all cores."""
    sizes, encoder = run.sizes, run.encoder
    cpu_s, gpu_s = run.encoding(sizes.ads, is_training=False)
    operations = 0.0
    if choose_kind(sizes.ads) == "ivf_pq":
        cells = 2 * math.isqrt(sizes.ads)
        trained_on = K_MEANS_ITERATIONS * SAMPLED_ADS_PER_CELL * cells
        operations = 2.0 * encoder.dim * cells * (sizes.ads + trained_on)
    added = sizes.ads * cost(f"index_{choose_kind(sizes.ads)}_ad_s")
    seconds = cpu_s + added + operations / cost("core_search_operations")
    size = arrays.index_bytes(sizes.ads, encoder.dim)
    return Need(
        "index of the ads",
        serial_s=seconds / run.cluster.machine.cores,
        serial_gpu_s=gpu_s,
        memory=size + FLOAT * encoder.dim * SAMPLED_ADS_PER_CELL * 2 * math.isqrt(sizes.ads),
        disk=size,
        network=_of_several(size, run.cluster),
    )


def pages_per_step(run: Training) -> float:
    """Bytes of pages that a step's draws touch if no page is in memory."""
    texts = run.texts_per_query * run.config.training.global_batch_size
    return texts * PAGE * PAGES_OF_A_TEXT


def _order_bytes(run: Training) -> float:
    """What a worker computes for itself: its order of the queries, and the nodes with edges."""
    per_machine = max(run.num_workers // run.cluster.count, 1)
    linked = 8 * run.sizes.nodes * len(run.sizes.graphs)
    return per_machine * (linked + 8 * run.sizes.queries + 24 * run.sizes.queries / run.num_workers)


def _of_several(written_and_read: float, cluster: Cluster) -> float:
    return written_and_read if cluster.count > 1 else 0.0
