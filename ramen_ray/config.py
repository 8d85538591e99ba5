"""The configuration: one frozen tree, changed by overlays of dotted keys, written as JSON."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from ramen_ray.bases import (
    BASES,
    BaseName,
    Combination,
    HardNegatives,
    Heads,
    NodeChoice,
    Order,
    TaskLoss,
)
from ramen_ray.data.store.made_folder import write_json
from ramen_ray.errors import UserError, shown_path
from ramen_ray.naming import checked_name

BUILT_IN = ("rdocs", "foldoc", "debian")
_DATASETS = Path(__file__).resolve().parent.parent / "datasets"


def _dataset_path(dataset: str) -> str:
    return str(_DATASETS / dataset) if dataset in BUILT_IN else dataset


def shown_dataset(path: str) -> str:
    """Return the name of a built-in dataset, by which it is found on any machine; else its path."""
    folder = Path(path).absolute()
    is_built_in = folder.name in BUILT_IN and folder.parent == _DATASETS
    return folder.name if is_built_in else shown_path(path)


Positive = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Name = Annotated[str, AfterValidator(checked_name)]
DatasetPath = Annotated[str, AfterValidator(_dataset_path)]
Weights = Annotated[
    dict[str, NotNegative],
    AfterValidator(lambda weights: {name: weight for name, weight in weights.items() if weight}),
]

DEFAULT_EXPERIMENT = "ramen_ray"
GB_PER_SHARD = 8.0
WITHOUT_GRAPH: Mapping[str, Any] = {
    "regularization.lambda_x": {},
    "regularization.lambda_z": {},
    "regularization.adaptive": False,
    "walk.enabled": False,
    "pruning.mode": "never",
}
"""Changes, by dotted key, that leave a run's base."""


class ConfigError(UserError):
    """A configuration has an unknown key or a bad value; the message names the key."""


class Section(BaseModel):
    """A part of the tree: immutable, and unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Make one line of each field's description, which ``--help`` breaks as it needs to."""
        for field in cls.model_fields.values():
            field.description = " ".join((field.description or "").split())


class EncoderConfig(Section):
    """The encoder that is trained."""

    kind: Literal["transformer", "bag"] = "transformer"
    """A transformer with pooling, or a bag of token embeddings."""
    pretrained: str
    """The encoder to start from: a local folder (an encoder's, a run's, a checkpoint's),
    models:/NAME@champion, package:MODULE/FOLDER, or a hub id."""
    pooling: Literal["mean", "cls"] | None = None
    """How a transformer's token states become one embedding; None takes what a
    sentence-transformers folder says, and the mean for others."""
    num_layers: Positive | None = None
    """Keep only a transformer's first layers; None keeps all."""
    max_length: Annotated[int, Field(ge=4)] = 32
    """Longer texts are cut to this many tokens, special tokens and prompts included."""
    query_prompt: str | None = None
    """What is put before each query, such as "query: "; None takes what a sentence-transformers
    folder says, and nothing for others."""
    ad_prompt: str | None = None
    """What is put before each ad and anchor, such as "passage: "; None as for queries."""
    dim: Positive | None = None
    """Keep the first dimensions only, as encoders trained with Matryoshka allow; they are trained
    further as a linear projection."""
    projection_dim: Positive | None = None
    """Width of a learned projection of the pooled state, with tanh, before it is normalised; None
    for none but that of a sentence-transformers folder, which is trained further. It is also the
    width of classifiers, which else have that of the encoder."""
    compile: bool = False
    """Train a transformer by torch.compile, which needs a C compiler, and a minute at the start."""


class OptimizerConfig(Section):
    """AdamW with a linear warm-up, then a decay."""

    lr: PositiveFloat = 2e-4
    """Peak learning rate, reached after the warm-up."""
    embedding_lr: PositiveFloat | None = None
    """Peak learning rate of the token embeddings; None takes lr."""
    head_lr: PositiveFloat | None = None
    """Peak learning rate of projection and classifier head; None takes lr."""
    weight_decay: NotNegative = 0.01
    """Decay of the weight matrices."""
    warmup_fraction: Fraction = 0.1
    """Share of all steps over which the learning rate rises."""
    decay: Literal["linear", "cosine"] = "linear"
    """How the learning rate falls to zero after the warm-up: along a line, or half a cosine."""
    max_gradient_norm: PositiveFloat | None = None
    """Clip the gradients of encoder and heads to this norm; None does not clip."""


class LossConfig(Section):
    """The losses: the triplet loss, which regularisers always use, and the softmax losses."""

    margin: NotNegative = 0.3
    """Margin γ of the hinge."""
    num_negatives: Positive = 10
    """How many of a row's hardest in-batch negatives count."""
    softmax_weighting: bool = False
    """Weight violations by softmax(similarity / 0.1), as NGAME does."""
    temperature: PositiveFloat = 0.05
    """decoupled, supcon: cosines are divided by this."""
    own_text_negatives: bool = True
    """Count an ad with a query's own text, which it did not lead to, as a negative of the encoder's
    task, as the papers do."""
    reverse_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """decoupled, supcon: share of the task in which queries are ranked for each ad, and not ads for
    each query."""


class ClassifierConfig(Section):
    """unidec: the ads' classifiers, trained beside the encoder."""

    share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Share of the task that classifiers have; the encoder has the rest."""
    temperature: PositiveFloat = 0.1
    """Inner products with classifiers are divided by this."""
    bce: NotNegative = 0.0
    """Weight of the binary cross-entropy that is added to the classifiers' loss."""
    lr: PositiveFloat = 3e-2
    """Peak learning rate of the classifiers, which get Adam row by row."""
    weight: PositiveFloat = 0.5
    """Weight of the classifier's cosine in an answer by both; the encoder's is 1. UniDEC adds them
    with the same weight."""
    unclicked: Literal["text", "own"] = "text"
    """What answers for ads without a train click, whose classifiers are only pushed away: the
    head's vector of their text, or their own classifier."""
    text_scale: PositiveFloat = 0.6
    """Scale of the cosine with a text that stands in for a classifier: texts that share words are
    more alike than a query and a classifier."""
    own_hard_negatives: bool = False
    """Compare the hard negatives of shortlists with classifiers alone. These need them, but a
    transformer learns them by heart, and those among them that would have been clicked."""
    sharded: bool = False
    """Give each worker a share of the classifiers, instead of all of them to each."""


class RegularizationConfig(Section):
    """Weights of the graph regularisers, per anchor set.

    A weight of 0 is dropped: it means the same as none.
    """

    lambda_x: Weights = {}
    """λ_x: weight of R_x, which pulls a query to its anchors, by anchor set."""
    lambda_z: Weights = {}
    """λ_z: weight of R_z, which pulls an ad to its anchors, by anchor set."""
    nodes: NodeChoice = "all"
    """Nodes that are pulled: all that have edges, clicked or not (all); these, but rarely clicked
    ones more often, in proportion to 1 / (1 + train clicks) (rare); or the queries and ads of the
    batch, so that ads without clicks are left out (clicked)."""
    every_steps: Positive = 1
    """Draw anchors only in every N-th step, with N times the weight; 4 cuts the graph's cost to
    about a quarter."""
    adaptive: bool = False
    """Let each weight grow while its graph pushes ads ahead of their nearest rivals, and shrink
    while it pushes them behind; λ is the most that it may become. With a softmax it is 0 until a
    test shows that the graph does push them ahead."""
    adaptive_step: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """Rate at which each query's evidence moves the logarithm of an adaptive weight."""


class BaseConfig(Section):
    """The plain objective that the graph regularisers are added to."""

    kind: BaseName = "in_batch"
    """Random batches (in_batch), with hard negatives from a shortlist of each query's nearest ads
    (ance), batches of similar queries (ngame), or both with a softmax over several ads of a query
    (depsl), also with classifiers (unidec)."""
    order: Order | None = None
    """Order of the queries: random; clustered, so that similar ones share a batch, in clusters that
    grow; or each batch of one cluster (batch_clusters). None takes the base's."""
    hard_negatives: HardNegatives | None = None
    """Ads drawn for each query besides those of the batch: none, or from shortlists. None takes the
    base's."""
    loss: TaskLoss | None = None
    """Loss of the task: triplet, or a softmax over the pool in which the other ads of a query do
    not compete (decoupled) or do (supcon). None takes the base's."""
    heads: Heads | None = None
    """What ads are found by: their embedding only (none), or also a classifier each. None takes
    the base's."""
    num_positives: Positive | None = None
    """Ads drawn for each query of those it led to. None takes the base's: 1, and 3 for depsl and
    unidec."""
    refresh_every: Positive = 5
    """Make new shortlists and clusters every N epochs. The first shortlists come after N epochs;
    there are no hard negatives until then."""
    num_hard_negatives: Positive | None = None
    """shortlists: ads drawn for each query in a step; they are negatives of the whole batch. None
    takes the base's: 1, and 6 for depsl and unidec."""
    shortlist_size: Positive | None = None
    """shortlists: ads of each, before the query's positives are dropped. None takes the base's:
    100, and 30 for depsl and unidec."""
    refresh_mode: Literal["asynchronous", "synchronous"] = "asynchronous"
    """shortlists: make them in the background (asynchronous), or while training waits (synchronous;
    repeatable to the bit)."""
    first_clustered_epoch: Positive = 10
    """clustered, batch_clusters: epochs of random batches before the first clusters."""
    cluster_size: Positive = 2
    """clustered: the first clusters have at most this many queries; a batch holds many clusters."""
    double_cluster_size_at: tuple[Positive, ...] = (20, 25, 50, 75, 100, 150, 200)
    """clustered: clusters double in these epochs; an epoch given twice quadruples them."""

    @property
    def parts(self) -> Combination:
        """The parts of the base, with those that are set here in place of its own."""
        names = [part.name for part in fields(Combination)]
        here = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return replace(BASES[self.kind], **here)

    @model_validator(mode="after")
    def _shortlists_suffice(self) -> "BaseConfig":
        parts = self.parts
        if parts.num_hard_negatives > parts.shortlist_size:
            raise ValueError(
                f"num_hard_negatives {parts.num_hard_negatives} are drawn from a shortlist of "
                f"shortlist_size {parts.shortlist_size}; draw fewer, or make the shortlist longer"
            )
        return self


class JudgedConfig(Section):
    """How judgements of train queries are learnt from, if the dataset has some.

    Ads judged below 0.5 are no positives, clicked or not; others are never negatives of their
    query. With num_negatives 0, graded 0 and without as_positives, judgements are not used.
    """

    num_negatives: Annotated[int, Field(ge=0)] = 2
    """Ads drawn for each query of those judged below 0.5, or with graded of all that are judged;
    they are negatives of the whole batch."""
    as_positives: bool = False
    """Train on ads judged 0.5 or more as if they had been clicked, each as often as the query's
    average click."""
    graded: NotNegative = 0.0
    """Weight of a term that brings cosines in line with grades: MarginMSE beside a triplet loss, or
    the KL divergence over the judged ads of the pool beside a softmax."""
    sources: tuple[str, ...] = ()
    """Whose judgements count, such as human; by default all."""


class WalkConfig(Section):
    """Random walks with restart, which replace each node's edges by the anchors that they visit."""

    enabled: bool = False
    """Train on the walked graph instead of the dataset's own edges."""
    num_hops: Positive = 400
    """Hops of each node's walk."""
    restart_probability: Annotated[float, Field(gt=0, lt=1)] = 0.8
    """Probability of going back to the start before a hop."""
    max_anchor_degree: Positive = 500
    """Anchors with more edges (of queries, or of ads) are left out."""
    top_k: Positive = 10
    """How many of its most visited anchors a node keeps, weighted by visits."""


class PruningConfig(Section):
    """Pruning: the encoder in training drops edges between texts that it finds dissimilar."""

    mode: Literal["asynchronous", "synchronous", "never"] = "never"
    """Prune in the background (asynchronous), while training waits (synchronous; repeatable to the
    bit), or not at all."""
    prune_threshold: Annotated[float, Field(ge=-1, lt=1)] = 0.0
    """Edges between texts whose cosine is at most this are dropped."""
    warmup_epochs: Positive = 10
    """Epochs on the whole graph before it is pruned for the first time."""
    every_epochs: Positive = 5
    """Epochs from one pruning to the next; each prunes the whole graph, so edges can come back."""


class TrainingConfig(Section):
    """How long to train, on what batches, and what to keep."""

    epochs: Positive = 10
    """Passes over the train queries."""
    global_batch_size: Positive = 256
    """Queries per step over all workers; the number of workers does not change it."""
    texts_at_once: Positive | None = None
    """Encode at most this many of a step's distinct texts at once (on each worker), and each part
    once more for its gradients: memory for larger batches, at a third more time. None encodes all;
    if they do not fit into a GPU's memory, a run goes on with half as many."""
    sampling: Literal["uniform", "clicks"] = "uniform"
    """Draw a query's ad uniformly among those it led to, or in proportion to its clicks."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Encoder arithmetic; auto is bf16 autocast on GPUs and fp32 on CPUs."""
    validate_every: Positive = 1
    """Epochs from one validation to the next; the last epoch is always validated."""
    checkpoint_every_steps: Positive | None = None
    """Also write a checkpoint every N steps; None writes one after each epoch only."""
    selection_metric: str = "P@1"
    """Validation metric by which a checkpoint is better than another; higher is better."""
    early_stop_patience: Positive | None = None
    """Stop after N validations without a better one; None trains to the end."""


class EvaluationConfig(Section):
    """Constants of the metrics."""

    propensity_a: NotNegative = 0.55
    """A of the propensity model of Jain et al. (2016)."""
    propensity_b: NotNegative = 1.5
    """B of the propensity model."""


class IndexConfig(Section):
    """The index of ads in the retriever that a finished run logs."""

    kind: Literal["auto", "flat", "half", "hnsw", "ivf_pq"] = "auto"
    """Search all ads (flat), all in half precision (half: half of the memory), along a graph
    (hnsw), or in compressed cells (ivf_pq: least memory); auto chooses by the number of ads."""


class WorkersConfig(Section):
    """The workers; properties of the cluster, not of the experiment."""

    num_workers: Positive = 1
    """Worker processes, which share each batch."""
    min_workers: Positive | None = None
    """Go on with as few workers if machines are lost or missing, and with more when they are there;
    None needs all num_workers."""
    use_gpu: bool = False
    """Train on GPUs."""
    gpus_per_worker: Annotated[float, Field(gt=0, le=1)] = 0.75
    """Share of a GPU that a worker takes; the rest is for shortlists and pruning. Runs with one
    worker each can share a GPU."""
    cpus_per_worker: Positive = 2
    """CPUs of each worker, and its CPU threads unless OMP_NUM_THREADS is set. Figures of other
    numbers of threads differ by the rounding of sums."""
    max_failures: Annotated[int, Field(ge=0)] = 3
    """How many lost workers a run survives, by resuming from its last checkpoint."""
    startup_timeout_s: PositiveFloat = 60.0
    """How long to wait for the cluster to offer the workers' CPUs and GPUs. If a machine is lost,
    a run waits as long again for another, or max_failures + 1 times as long if it has several
    workers; a trial of a sweep, for a day."""
    gb_per_shard: PositiveFloat = GB_PER_SHARD
    """GB of embeddings of ads that one process searches, for shortlists and in jobs/evaluate.py;
    more are cut into shards, each held by a process of its own. Also GB of a retriever's index in
    cells that memory holds while it is made."""

    @property
    def fewest(self) -> int:
        """How many workers a training needs to begin and to go on."""
        return self.num_workers if self.min_workers is None else self.min_workers

    @model_validator(mode="after")
    def _check_workers(self) -> Self:
        if self.fewest > self.num_workers:
            raise ValueError(
                f"min_workers {self.min_workers} are more than num_workers {self.num_workers}"
            )
        if self.use_gpu and self.num_workers > 1 and self.gpus_per_worker <= 0.5:
            raise ValueError(
                f"gpus_per_worker {self.gpus_per_worker} lets several of the num_workers "
                f"{self.num_workers} share a GPU, over which they cannot exchange gradients; "
                f"take more than 0.5 for each, or one worker"
            )
        return self


class RunConfig(Section):
    """Everything that a training run depends on."""

    dataset: DatasetPath = _dataset_path("rdocs")
    """The dataset directory; or rdocs, foldoc or debian, which are built in (./rdocs is a folder
    here)."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of every random draw."""
    output: str = "outputs"
    """Folder for prepared data, walked graphs, runs and, unless MLFLOW_TRACKING_URI is set, the
    MLflow store. Several machines need a folder that all of them can reach."""
    local_folder: str | None = None
    """Folder on each machine's own disk. Workers copy into it what steps read, so that these do not
    read a slow shared folder; None reads everything where it is."""
    name: Name | None = None
    """Name of the run; None makes one from the configuration. An interrupted run resumes when it is
    started again under its name."""
    experiment: Name = DEFAULT_EXPERIMENT
    """MLflow experiment."""
    allow_changed: bool = False
    """Go on with what another encoder or version of ramen_ray or its libraries has begun.
    It is not saved with a run."""
    encoder: EncoderConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    loss: LossConfig = LossConfig()
    regularization: RegularizationConfig = RegularizationConfig()
    base: BaseConfig = BaseConfig()
    classifier: ClassifierConfig = ClassifierConfig()
    judged: JudgedConfig = JudgedConfig()
    walk: WalkConfig = WalkConfig()
    pruning: PruningConfig = PruningConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    index: IndexConfig = IndexConfig()
    workers: WorkersConfig = WorkersConfig()

    @model_validator(mode="after")
    def _check_batch(self) -> Self:
        batch = self.training.global_batch_size
        workers = self.workers.num_workers
        if batch < workers:
            raise ValueError(
                f"training.global_batch_size {batch} has no query for some of workers.num_workers "
                f"{workers}"
            )
        return self


class FilterSettings(Section):
    """Which ads may answer a query."""

    filter: tuple[str, ...] = ()
    """Only ads with these values, as in market=DE status=live; a column that is named again lets
    either value through. --columns.ad-filters of jobs/ingest.py or jobs/index.py keeps columns."""
    min_score: float | None = None
    """Only ads with at least this score."""
    at_most: tuple[str, ...] = ()
    """Of a query's ads at most so many with one value, as in seller=2."""
    with_columns: tuple[str, ...] = ()
    """Columns whose values are given with each ad, as in market seller."""

    @property
    def params(self) -> dict[str, Any]:
        """What a request may set of its answers; a ConfigError if a word is not as it must be."""
        return {
            "filter": self._wanted,
            "min_score": self.min_score,
            "at_most": self._limits,
            "columns": self.with_columns,
        }

    @property
    def _limits(self) -> dict[str, int]:
        """How many ads may have one value, by column; a ConfigError if one is not COLUMN=NUMBER."""
        limits = {}
        for word in self.at_most:
            name, _, number = word.partition("=")
            if not (name and number.isdecimal() and int(number)):
                raise ConfigError(f"--at-most {word}: write COLUMN=NUMBER, such as seller=2")
            limits[name] = int(number)
        return limits

    @property
    def _wanted(self) -> dict[str, list[str]]:
        """The values to filter by, by column; a ConfigError if one is not COLUMN=VALUE."""
        values: dict[str, list[str]] = {}
        for word in self.filter:
            name, equals, value = word.partition("=")
            if not (name and equals):
                raise ConfigError(f"--filter {word}: write COLUMN=VALUE, such as market=DE")
            values.setdefault(name, []).append(value)
        return values


ConfigType = TypeVar("ConfigType", bound=Section)


def overlay(config: ConfigType, changes: Mapping[str, Any]) -> ConfigType:
    """Return ``config`` with dotted keys changed (``{"optimizer.lr": 1e-4}``) and validated anew.

    Raises a ConfigError if a key is unknown or a value is bad.
    """
    tree = config.model_dump()
    for path, value in changes.items():
        *parents, leaf = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise ConfigError(f"{path}: {parent!r} is a value, not a section")
        node[leaf] = value
    return _validate(type(config), tree)


def check_epochs(config: RunConfig) -> None:
    """Raise a ConfigError if pruned graphs, shortlists or clusters would begin after the end."""
    epochs = config.training.epochs
    pruning = config.pruning
    base = config.base
    # results of what runs beside the training are used an epoch later
    pruned = pruning.warmup_epochs + (pruning.mode == "asynchronous")
    listed = base.refresh_every + (base.refresh_mode == "asynchronous")
    late = []
    if pruning.mode != "never" and pruned >= epochs:
        late.append(f"pruned graphs after pruning.warmup_epochs {pruning.warmup_epochs}")
    if base.parts.hard_negatives == "shortlists" and listed >= epochs:
        late.append(f"shortlists of hard negatives after base.refresh_every {base.refresh_every}")
    if base.parts.order != "random" and base.first_clustered_epoch >= epochs:
        late.append(f"clustered batches at base.first_clustered_epoch {base.first_clustered_epoch}")
    if late:
        raise ConfigError(
            f"training.epochs {epochs} is too few, as these would never be used: "
            f"{', '.join(late)}; train longer, lower them, or set base.kind to in_batch"
        )


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """Make paths absolute, as Ray's workers have a different working directory."""
    paths: dict[str, Any] = {
        "dataset": str(Path(config.dataset).absolute()),
        "output": str(Path(config.output).absolute()),
    }
    if config.local_folder is not None:
        paths["local_folder"] = str(Path(config.local_folder).absolute())
    encoder = Path(config.encoder.pretrained).expanduser()
    if encoder.is_dir():
        paths["encoder"] = config.encoder.model_copy(update={"pretrained": str(encoder.absolute())})
    return config.model_copy(update=paths)


def flatten(config: Section) -> dict[str, Any]:
    """Return the tree as dotted keys; :func:`overlay` with them turns any tree into this one."""
    return dict(_leaves("", config.model_dump()))


def write_config(config: RunConfig, file: Path) -> None:
    """Write ``config`` as JSON, without what holds for one call only."""
    tree = config.model_dump(exclude={"allow_changed"})
    write_json(file, tree)


def read_config(file: Path) -> RunConfig:
    """Read what :func:`write_config` wrote; a ConfigError if it is missing or not valid."""
    try:
        # a JSON value has a type: "3" and true are no numbers
        return RunConfig.model_validate_json(file.read_bytes(), strict=True)
    except OSError as error:
        raise ConfigError(f"cannot read the config file {file}: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigError(f"{file}: {message_of(error)}") from error


def message_of(error: ValidationError) -> str:
    """Describe in one line which keys are wrong, and how."""
    said = [
        (".".join(map(str, finding["loc"])) or "config", finding["msg"])
        for finding in error.errors()
    ]
    return "; ".join(f"{key}: {message.removeprefix('Value error, ')}" for key, message in said)


def _validate(kind: type[ConfigType], tree: Any) -> ConfigType:
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(message_of(error)) from error


def _leaves(prefix: str, node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _leaves(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", value
