"""Train a combiner on a finished run with novel ads: embed, run the workers, log a retriever."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ramen_ray.config import flatten
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.made_folder import check_intact, in_use, owned_folder, read_json
from ramen_ray.method.model.dual_encoder import load_model
from ramen_ray.method.new_ads.evaluation import Embedded, Evaluation
from ramen_ray.method.new_ads.representation import COMBINER_FOLDER, use_combiner
from ramen_ray.naming import joined_name, short_hash
from ramen_ray.orchestration.cluster.joining import start_ray
from ramen_ray.orchestration.cluster.resources import check_resources
from ramen_ray.orchestration.new_ads.combiner_worker import (
    CombineTask,
    embed_texts,
    identity_of,
    open_embedded,
)
from ramen_ray.orchestration.new_ads.finished import (
    CombinerError,
    FinishedRun,
    open_finished_run,
)
from ramen_ray.orchestration.new_ads.settings import CombineSettings
from ramen_ray.orchestration.prepare.pipeline import prepare
from ramen_ray.orchestration.run.build import build_propensity
from ramen_ray.orchestration.run.directory import (
    IDENTITY_FILE,
    RunDirectory,
    RunError,
    keep_intact_checkpoints,
    refuse_anothers,
    told_how_to_go_on,
)
from ramen_ray.orchestration.run.identity import software
from ramen_ray.orchestration.run.inputs import trained_tokenizer
from ramen_ray.orchestration.run.processes import train_in_all_workers
from ramen_ray.orchestration.run.results import EXAMPLE_QUERIES, SINCE_IT_BEGAN
from ramen_ray.tracking.addresses import tracking_uri
from ramen_ray.tracking.registry import Registry
from ramen_ray.tracking.retriever import log_retriever
from ramen_ray.tracking.runs import Run, prefixed
from ramen_ray.tracking.step_logger import StepLogger

EMBEDDINGS_FILE = "embeddings.npy"
SAYS_WHERE = {"run", "output", "workers", "allow_changed"}


@dataclass(frozen=True)
class CombineResult:
    """A trained combiner, and how it compares."""

    evaluation: Evaluation
    folder: Path  # with the combiner
    model_uri: str  # of the retriever that uses it
    run: Run  # in MLflow, a child of the encoder's


def combine(settings: CombineSettings) -> CombineResult:
    """Train a combiner, or go on with one, evaluate it, and log a retriever; or a UserError."""
    output = settings.output.absolute()
    registry = Registry(tracking_uri(output))
    finished = open_finished_run(registry, settings.run, output)
    config = finished.config
    dataset = finished.dataset
    check_intact(finished.model)
    tokenizer = trained_tokenizer(finished.model, config.encoder)
    workers = settings.workers
    start_ray(for_ray_train=workers.num_workers > 1)
    check_resources(workers)
    data = prepare(dataset, output / "prepared", tokenizer)
    model = load_model(finished.model, part=finished.part)
    check_sizes(settings, data, model.dim)
    with in_use(dataset.path), _open_directory(output, settings, finished) as directory:
        parent = Run(registry.uri, str(finished.directory.mlflow_run_id))
        run = directory.open_run(registry.uri, config.experiment, output, parent)
        for checkpoint in keep_intact_checkpoints(directory.path):
            its = read_json(checkpoint / IDENTITY_FILE)
            refuse_anothers(checkpoint, its, identity_of(directory.path))
        with told_how_to_go_on(directory.path), run.closing():
            parameters = {f"combine.{key}": value for key, value in flatten(settings).items()}
            run.log_parameters({**registry.parameters(parent.id), **parameters}, {})
            embeddings = directory.path / EMBEDDINGS_FILE
            embed_texts(finished.model, finished.part, data, embeddings, workers.cpus_per_worker)
            task = CombineTask(
                settings,
                finished.model,
                finished.part,
                data.path,
                embeddings,
                directory.path,
                build_propensity(config),
                run,
            )
            evaluation = train_in_all_workers(task.train, workers, directory.path)
            assert evaluation is not None, "the first worker evaluates"
            StepLogger(run, directory.path).send_unsent()
            embedded = open_embedded(model, data, embeddings)
            model_id = _log_retriever(registry, finished, embedded, directory.path, run)
            for row, by_split in evaluation.metrics.items():
                for split, values in by_split.items():
                    run.log_metrics(prefixed(f"{row}/{split}/", values))
        directory.note(finished=True)
    return CombineResult(evaluation, directory.path, f"models:/{model_id}", run)


@contextmanager
def _open_directory(
    output: Path, settings: CombineSettings, finished: FinishedRun
) -> Iterator[RunDirectory]:
    """Find the folder of a combiner by what determines its result, and lock it; or a RunError."""
    chosen = settings.model_dump_json(exclude=SAYS_WHERE)
    key = short_hash(f"{chosen}{finished.retriever.model_id}")
    name = joined_name(finished.directory.name, settings.variant, key)
    directory = RunDirectory(output / "combiners" / name)
    made_from = {"dataset": finished.dataset.fingerprint, **software()}
    with directory.held(made_from, finished.dataset.path, settings.allow_changed):
        if directory.is_finished:
            raise RunError(
                f"the combiner {directory.path} is finished (MLflow run "
                f"{directory.mlflow_run_id}); change a setting, or remove the folder"
            )
        yield directory


def _log_retriever(
    registry: Registry, finished: FinishedRun, embedded: Embedded, folder: Path, run: Run
) -> str:
    with owned_folder(folder) as aside:
        copied = registry.download(finished.retriever.uri, aside)
        kind = finished.retriever.metadata["index"]
        use_combiner(copied, folder / COMBINER_FOLDER, embedded.all_ads(), kind)
        metadata = {**finished.retriever.metadata, "combiner": True}
        with finished.dataset.unchanged(SINCE_IT_BEGAN):
            queries = next(finished.dataset.batches("queries/test", ["text"], EXAMPLE_QUERIES))
        return log_retriever(run, copied, queries["text"].to_pylist(), metadata)


def check_sizes(settings: CombineSettings, data: Prepared, dim: int) -> None:
    """Check that there is enough to train on, and that the heads fit; else a CombinerError."""
    combiner = settings.combiner
    name = data.metadata["name"]
    least = settings.classifiers.min_clicks
    is_seen = data.train_click_counts >= least
    rows, ads = data.clicks["train"].gather(data.clicked_queries)
    num_seen = int(is_seen.sum())
    num_queries = len(np.unique(rows[is_seen[ads]]))
    if num_seen <= combiner.neighbours:
        raise CombinerError(
            f"{name} has {num_seen} ads with at least {least} train clicks; combiner.neighbours "
            f"{combiner.neighbours} needs more"
        )
    if num_queries < combiner.batch_size:
        raise CombinerError(
            f"{name} has {num_queries} train queries with clicks on these ads, fewer than "
            f"combiner.batch_size {combiner.batch_size}"
        )
    if combiner.batch_size % settings.workers.num_workers:
        raise CombinerError(
            f"combiner.batch_size {combiner.batch_size} cannot be shared evenly by "
            f"workers.num_workers {settings.workers.num_workers}"
        )
    if dim % combiner.heads:
        raise CombinerError(f"combiner.heads {combiner.heads} must divide the vectors' width {dim}")
