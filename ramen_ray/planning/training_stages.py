"""Needs of training and of what is made while it goes on: pruned graphs, shortlists, the index."""

import math
from dataclasses import dataclass, replace

from ramen_ray.config import RunConfig, overlay
from ramen_ray.method.retrieval.index import (
    MOST_FLAT_ADS,
    SAMPLED_ADS_PER_CELL,
    SHORT_CODE_CELLS_SEARCHED,
    choose_kind,
    short_code_bytes,
    short_code_cells,
)
from ramen_ray.method.retrieval.index_file import MOST_GROWTH
from ramen_ray.method.retrieval.search import costs_too_much, queries_per_block
from ramen_ray.planning import arrays
from ramen_ray.planning.batches import Batch, batch_of
from ramen_ray.planning.costs import cost
from ramen_ray.planning.machines import Cluster
from ramen_ray.planning.needs import Need
from ramen_ray.planning.sizes import Encoder, Sizes

FLOAT = 4
STATES = 16  # bytes of a weight, its gradient and two moments
SAVED_STATES = 12  # without the gradient
WIDTH = 384  # of the embeddings that unit costs were measured with
# Bytes of a token, layer and unit of width that are saved for backward, measured on a CPU with
# saved_tensors_hooks on two layers of MiniLM's width: 67 in fp32, 55 to 59 under bf16 autocast,
# where norms and residuals stay fp32.
ACTIVATIONS_FP32, ACTIVATIONS_BF16 = 67, 60
GPU_OF_TASK = 0.25  # what Ray gives a background task of a GPU, if the workers leave as much
PAGE = 4096
PAGES_OF_A_TEXT = 4  # its offset, its tokens, its hash, and a node's edges
RESULTS = 2  # of a background task that are kept
K_MEANS_ITERATIONS = 10  # faiss's for the cells of an index
CHECKPOINTS = 3
NUMBERED_TEXT = 40  # bytes, while equal texts are found
FOUND = 12  # bytes of an ad that a search finds: its number and its similarity
COPIES_OF_FOUND = 8  # while what two shards have found is merged
SHARD_BYTES = 2**29  # of an actor, besides its shard
MEMORY_FOR_ACTORS = 0.7  # of a machine: Ray keeps the rest for its store
SAMPLED_QUERIES = 1000  # whose exact search tells the recall of an approximate one


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
    def gpu_of_worker(self) -> float:
        """Share of a GPU's rate that a worker computes with; 0 is for CPUs."""
        return float(self.on_gpu)

    @property
    def gpu_of_task(self) -> float:
        """The same of a background task: CPUs, unless the workers leave Ray a share for it."""
        has_room = self.config.workers.gpus_per_worker + GPU_OF_TASK <= 1
        return GPU_OF_TASK if self.on_gpu and has_room else 0.0

    def with_room_for_tasks(self) -> "Training":
        """Return the same run, whose workers leave a share of each GPU."""
        changes = {"workers.gpus_per_worker": 1 - GPU_OF_TASK}
        return replace(self, config=overlay(self.config, changes))

    @property
    def num_workers(self) -> int:
        """Workers of the run."""
        return self.cluster.gpus if self.on_gpu else self.cluster.count

    @property
    def threads_of_search(self) -> int:
        """Threads that search an index of ads: a worker's, if it waits for its shortlists."""
        if self.config.base.refresh_mode == "asynchronous":
            return 1
        return max(self.cluster.machine.cores * self.cluster.count // self.num_workers, 1)

    @property
    def steps(self) -> int:
        """Steps of all epochs."""
        training = self.config.training
        return self.sizes.queries // training.global_batch_size * training.epochs

    @property
    def batch(self) -> Batch:
        """What a step draws, encodes and compares."""
        return batch_of(self.config, self.sizes)

    def encoding(self, texts: float, gpu: float, is_training: bool = False) -> tuple[float, float]:
        """Return processor seconds and GPU seconds that encode ``texts``.

        Args:
            texts: how many.
            gpu: share of a GPU's rate; 0 encodes on CPUs.
            is_training: whether gradients are computed too.
        """
        operations = self.encoder.operations(texts, self.sizes.tokens, is_training)
        if gpu:
            return 0.0, operations / (gpu * self.cluster.machine.gpu_bf16 * cost("gpu_share"))
        by_token = texts * cost("encode_bag_text_s") if not self.encoder.layers else 0.0
        return by_token + operations / cost("core_operations"), 0.0


def train(run: Training) -> Need:
    """All steps: drawing, encoding, products, updates, and the exchange of gradients.

    While GPUs compute a step, a thread draws the next one; a CPU does one after the other.
    """
    batch = run.batch
    if run.encoder.layers:
        drawn = run.steps * batch.drawn * cost("draw_text_s")
        cpu_s, gpu_s = run.encoding(run.steps * batch.distinct, run.gpu_of_worker, is_training=True)
    else:
        drawn, gpu_s = 0.0, 0.0  # steps were measured whole
        step_s = batch.distinct * cost("bag_text_s") + batch.pairs * cost("bag_pair_s")
        cpu_s = run.steps * step_s
    states = _state_bytes(run, batch.drawn)
    return Need(
        "training",
        cpu_s=cpu_s,
        longest_s=drawn if run.on_gpu else 0.0,
        serial_s=0.0 if run.on_gpu else drawn,
        gpu_s=gpu_s,
        memory=cost("ray_bytes") + _order_bytes(run) + (0.0 if run.on_gpu else states),
        mapped=_mapped_bytes(run),
        gpu_memory=states if run.on_gpu else 0.0,
        disk=CHECKPOINTS * _saved_bytes(run),
        network=_exchanged_bytes(run, batch.drawn),
    )


def _mapped_bytes(run: Training) -> float:
    """The prepared arrays, graphs besides, and the shortlists in use."""
    lists = _lists_bytes(run) if _minings(run) else 0.0
    return arrays.prepared_bytes(run.sizes) + sum(_graphs_besides(run)) + lists


def _graphs_besides(run: Training) -> list[float]:
    """Bytes of the graphs beside the dataset's own: walked, and pruned, at most.

    What a run draws from is the last of them, but the edges of the others are no negatives either.
    """
    walked = [_graph_bytes(run)] if run.config.walk.enabled else []
    return walked + ([_graph_bytes(run)] if _prunings(run) else [])


def _graph_bytes(run: Training) -> float:
    """The graph that a run begins with: walked, or the dataset's own."""
    sizes, walk = run.sizes, run.config.walk
    if walk.enabled:
        return arrays.walked_bytes(sizes, walk.top_k)
    return sum(arrays.graph_bytes(sizes, graph, is_weighted=True) for graph in sizes.graphs)


def _exchanged_bytes(run: Training, texts: float) -> float:
    """Gradients and embeddings, between machines, and what each machine maps.

    Embeddings go to all others. The gradients of all of them are summed over the workers, as those
    of the weights are, which is there and back.
    """
    others, embeddings = run.cluster.count - 1, texts * run.encoder.dim
    numbers = embeddings + 2 * (embeddings + run.encoder.weights)
    mapped = run.cluster.over_network(run.cluster.count * _mapped_bytes(run))
    return run.steps * others * FLOAT * numbers + mapped


def _saved_bytes(run: Training) -> float:
    """Weights and moments, of classifiers too."""
    classifiers = run.config.base.parts.heads == "classifier"
    of_ads = arrays.classifier_bytes(run.sizes.ads, run.encoder.dim) if classifiers else 0.0
    return SAVED_STATES * run.encoder.weights + of_ads


def _state_bytes(run: Training, texts: float) -> float:
    """What a worker holds: weights and moments, activations, classifiers, queries to cluster."""
    encoder, parts = run.encoder, run.config.base.parts
    saved = ACTIVATIONS_BF16 if run.on_gpu else ACTIVATIONS_FP32
    per_token = saved * encoder.layers * encoder.dim
    held = STATES * encoder.weights + per_token * texts * run.sizes.tokens / run.num_workers
    if parts.heads == "classifier":
        shares = run.num_workers if run.config.classifier.sharded else 1
        held += arrays.classifier_bytes(run.sizes.ads, encoder.dim) / shares
    if parts.order != "random":
        held += arrays.embedding_bytes(run.sizes.queries, encoder.dim)
    return held


def background(run: Training) -> list[Need]:
    """What is made from checkpoints while training goes on."""
    return [need for need in (prune(run), mine_shortlists(run)) if need is not None]


def _prunings(run: Training) -> int:
    """How often the graph is pruned."""
    settings, epochs = run.config.pruning, run.config.training.epochs
    if settings.mode == "never" or epochs <= settings.warmup_epochs or not run.sizes.graphs:
        return 0
    return 1 + (epochs - 1 - settings.warmup_epochs) // settings.every_epochs


def prune(run: Training) -> Need | None:
    """Prune the graph as often as the schedule says; None if it never does."""
    times = _prunings(run)
    if not times:
        return None
    sizes, encoder, walk = run.sizes, run.encoder, run.config.walk
    edges = sizes.edges
    if walk.enabled:
        edges = min(edges * walk.top_k, sizes.nodes * walk.top_k * len(sizes.graphs))
    cpu_s, gpu_s = run.encoding(sizes.texts, run.gpu_of_task)
    embeddings = arrays.embedding_bytes(sizes.texts, encoder.dim)
    serial = sizes.texts * cost("number_text_s") + edges * _wide(run) * cost("prune_edge_s")
    return Need(
        "pruning",
        cpu_s=times * cpu_s,
        serial_s=times * serial,
        gpu_s=times * gpu_s,
        memory=cost("ray_bytes") + NUMBERED_TEXT * sizes.texts,
        mapped=embeddings,
        disk=RESULTS * _graph_bytes(run),
        scratch=embeddings,
        network=run.cluster.over_network(2 * times * embeddings),
    )


def _minings(run: Training) -> int:
    """How often shortlists are made."""
    base, epochs = run.config.base, run.config.training.epochs
    return 0 if base.parts.hard_negatives == "none" else (epochs - 1) // base.refresh_every


def mine_shortlists(run: Training) -> Need | None:
    """Search all ads for every train query each time; None if the base makes no shortlists."""
    times = _minings(run)
    if not times:
        return None
    of_ads = FLOAT * run.sizes.ads * run.encoder.dim
    is_sharded = of_ads > run.config.workers.gb_per_shard * 1e9
    return _search_in_shards(run, times) if is_sharded else _search_in_one_task(run, times)


def _search_in_one_task(run: Training, times: int) -> Need:
    sizes, gpu = run.sizes, run.gpu_of_task
    cpu_s, gpu_s = run.encoding(sizes.queries + sizes.ads, gpu)
    index = 2 * FLOAT * sizes.ads * run.encoder.dim
    if gpu:
        rate = gpu * run.cluster.machine.gpu_fp32 * cost("gpu_search_share")
        gpu_s += _products(run, sizes.queries) / rate
    else:
        cpu_s += _search_s(run, 1)
    return Need(
        "shortlists",
        serial_s=times * cpu_s / run.threads_of_search,
        serial_gpu_s=times * gpu_s,
        memory=cost("ray_bytes") + index,
        gpu_memory=index / 2 if gpu else 0.0,
        disk=RESULTS * _lists_bytes(run),
        network=run.cluster.over_network(times * arrays.token_bytes(sizes.nodes, sizes.tokens)),
    )


def _search_in_shards(run: Training, times: int) -> Need:
    """All machines embed into the shared folder; actors with a shard each search on CPUs.

    Every actor reads all queries, and adds what it finds to what the one before has sent it. If the
    machines cannot hold all shards at once, some wait for a later pass, and lists of all queries
    lie in Ray's store and, as it is small, on the machines' own disks.
    """
    sizes, cluster, dim = run.sizes, run.cluster, run.encoder.dim
    cpu_s, gpu_s = run.encoding(sizes.queries + sizes.ads, run.gpu_of_task)
    of_ad = FLOAT * dim if _is_exact(run) else short_code_bytes(dim)
    shards = math.ceil(sizes.ads * of_ad / (run.config.workers.gb_per_shard * 1e9))
    actor = SHARD_BYTES + sizes.ads * of_ad / shards
    together = _shards_together(run, shards, actor)
    passes = math.ceil(shards / together)
    cores = cluster.machine.cores * cluster.count
    waiting = max(cores / (together * run.threads_of_search), 1)  # cores without a shard
    lists = FOUND * run.config.base.parts.shortlist_size
    found = lists * sizes.queries
    ads, queries = FLOAT * sizes.ads * dim, FLOAT * sizes.queries * dim
    codes = 0.0 if _is_exact(run) else sizes.ads * of_ad
    spilled = min(passes - 1, 2) * found  # of the pass before, and of this one
    block = queries_per_block(sizes.queries)
    working = actor + COPIES_OF_FOUND * lists * min(block, sizes.queries)
    return Need(
        "shortlists",
        cpu_s=times * (cpu_s + waiting * _search_s(run, shards)),
        gpu_s=times * gpu_s,
        memory=cost("ray_bytes") + working * math.ceil(together / cluster.count),
        disk=RESULTS * _lists_bytes(run),
        scratch=ads + codes + queries + spilled,
        spilled=spilled,
        network=cluster.over_network(
            times * (2 * (ads + codes) + (1 + shards) * queries + shards * found)
        ),
    )


def _shards_together(run: Training, shards: int, actor: float) -> int:
    """Return how many shards' actors can run at once; as many are tried, then half as many."""
    machine = run.cluster.machine
    by_memory = int(MEMORY_FOR_ACTORS * machine.memory / actor)
    room = run.cluster.count * min(by_memory, machine.cores // run.threads_of_search)
    while shards > max(room, 1):
        shards = (shards + 1) // 2
    return shards


def _is_exact(run: Training) -> bool:
    """Say whether a search by CPUs looks at every ad."""
    return not costs_too_much(run.sizes.queries, run.sizes.ads, run.encoder.dim)


def _search_s(run: Training, shards: int) -> float:
    """Return the processor seconds of a search by CPUs, whose shards are indexed anew each time.

    A cell of an index of short codes has about half the square root of the ads.
    """
    sizes = run.sizes
    ads = sizes.ads / shards
    if _is_exact(run) or ads <= MOST_FLAT_ADS:
        return _exact_s(run, sizes.queries)
    built = shards * _cells_s(run, ads) + sizes.ads * _wide(run) * cost("index_short_codes_ad_s")
    answers = run.config.base.parts.shortlist_size * cost("short_codes_answer_s")
    cells = short_code_cells(round(ads)) / SHORT_CODE_CELLS_SEARCHED
    query = answers + cells * math.sqrt(ads) * cost("short_codes_cells_s")
    searched = sizes.queries * shards * _wide(run) * query
    return built + searched + _exact_s(run, SAMPLED_QUERIES)


def _exact_s(run: Training, queries: int) -> float:
    return _products(run, queries) / cost("core_search_operations")


def _cells_s(run: Training, ads: float) -> float:
    """Return the processor seconds in which an index learns its cells, and finds those of ads."""
    cells = 2 * math.sqrt(ads)
    learned_from = K_MEANS_ITERATIONS * SAMPLED_ADS_PER_CELL * cells
    operations = 2.0 * run.encoder.dim * cells * (ads + learned_from)
    return operations / cost("core_cell_operations")


def _wide(run: Training) -> float:
    return run.encoder.dim / WIDTH


def _products(run: Training, queries: int) -> float:
    return 2.0 * queries * run.sizes.ads * run.encoder.dim


def _lists_bytes(run: Training) -> float:
    """Ids of the ads of all queries' shortlists, in int32."""
    return FLOAT * run.sizes.queries * run.config.base.parts.shortlist_size


def index(run: Training) -> Need:
    """Embed all ads and build the retriever's index, in one process that has all cores."""
    sizes, encoder = run.sizes, run.encoder
    cpu_s, gpu_s = run.encoding(sizes.ads, run.gpu_of_worker)
    kind = choose_kind(sizes.ads)
    added = sizes.ads * _wide(run) * cost(f"index_{kind}_ad_s")
    seconds = cpu_s + added + (_cells_s(run, sizes.ads) if kind == "ivf_pq" else 0.0)
    size = arrays.index_bytes(sizes.ads, encoder.dim)
    most_in_memory = 1e9 * run.config.workers.gb_per_shard
    is_in_parts = kind == "ivf_pq" and MOST_GROWTH * size > most_in_memory
    sample = FLOAT * encoder.dim * SAMPLED_ADS_PER_CELL * 2 * math.isqrt(sizes.ads)
    return Need(
        "index of the ads",
        serial_s=seconds / run.cluster.machine.cores,
        serial_gpu_s=gpu_s,
        memory=sample + (most_in_memory if is_in_parts else size),
        disk=size,
        scratch=size * is_in_parts,
        network=run.cluster.over_network((1 + 2 * is_in_parts) * size),
    )


def pages_per_step(run: Training) -> float:
    """Bytes of pages that a step's draws touch if no page is in memory."""
    of_a_text = PAGES_OF_A_TEXT + len(_graphs_besides(run))
    lists = run.config.training.global_batch_size if _minings(run) else 0
    return PAGE * (run.batch.drawn * of_a_text + lists)


def _order_bytes(run: Training) -> float:
    """What a worker computes for itself: its order of the queries, and the nodes with edges."""
    per_machine = max(run.num_workers // run.cluster.count, 1)
    linked = 8 * run.sizes.nodes * len(run.sizes.graphs)
    return per_machine * (linked + 8 * run.sizes.queries + 24 * run.sizes.queries / run.num_workers)
