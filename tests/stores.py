"""A store with retrievers that were made by hand, some better than others."""

import json
import os
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from conftest import free_port
from mlflow.tracking import MlflowClient
from support import MAX_LENGTH, PATIENCE_S, run_python, running

from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.model.dual_encoder import DualEncoder, load_model
from ramen_ray.method.model.encoder import Encoder, TransformerEncoder, build_bag
from ramen_ray.method.model.heads import Head
from ramen_ray.method.retrieval.retriever_folder import RetrieverSettings, write_retriever
from ramen_ray.tracking.addresses import sqlite_uri
from ramen_ray.tracking.aliases import give, holder_of
from ramen_ray.tracking.registry import LoggedRetriever, Registry, uri_of
from ramen_ray.tracking.retriever import log_retriever
from ramen_ray.tracking.runs import Run, open_run

BLIND = 1000.0  # all texts are alike
FLAT = RetrieverSettings("flat", MAX_LENGTH)


@contextmanager
def served_by_mlflow(uri: str, log: Path, **options: Any) -> Iterator[Callable[..., Any]]:
    """Serve a model until the block ends; yields what posts a request, and returns predictions."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "models", "serve", "--env-manager", "local"]
    command += ["--model-uri", uri, "--host", "127.0.0.1", "--port", str(port)]

    def post(body):
        request = urllib.request.Request(
            f"{address}/invocations",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)["predictions"]

    with running(command, log, f"{address}/ping", **options):
        yield post


ALONE = """
import json, sys
_, uris, texts, *without = sys.argv
sys.modules |= dict.fromkeys(without)
import mlflow
for uri in uris.split():
    answers = mlflow.pyfunc.load_model(uri).predict(json.loads(texts))
    print(json.dumps(answers["scores"].tolist()))
"""


def scores_alone(
    store: str, uris: Sequence[str], texts: list[str], folder: Path, *without: str
) -> list[list[list[float]]]:
    """Answer texts by models in a process that lacks some modules; returns each model's scores."""
    environment = {**os.environ, "MLFLOW_TRACKING_URI": store}
    words = ["-c", ALONE, " ".join(uris), json.dumps(texts), *without]
    done = run_python(*words, cwd=folder, env=environment)
    return [json.loads(line) for line in done.stdout.splitlines()]


def choose(registry: Registry, name: str, run_id: str, model_id: str) -> str:
    """Make a logged retriever the champion of a name, whoever was it; returns its version."""
    return give(registry, "champion", run_id, model_id, holder_of(registry, name, "champion"))


@dataclass
class Store:
    """A store in which retrievers of several qualities are logged."""

    output: Path
    data: Prepared
    encoder_path: str
    build: Callable[[str], Encoder] = build_bag

    @property
    def uri(self) -> str:
        return sqlite_uri(self.output)

    @property
    def client(self) -> MlflowClient:
        return MlflowClient(tracking_uri=self.uri)

    @property
    def registry(self) -> Registry:
        return Registry(self.uri)

    def model(self, noise: float) -> DualEncoder:
        """Build a model that is worse with more ``noise``; a transformer has heads."""
        encoder = self.build(self.encoder_path)
        torch.manual_seed(round(1000 * noise))
        weights = encoder.token_embeddings.data
        weights += noise * weights.std() * torch.randn_like(weights)
        if noise == BLIND:
            weights[:] = 1.0
        if isinstance(encoder, TransformerEncoder):
            encoder.projection = Head.orthogonal(encoder.width, 6, has_tanh=True, seed=3)
            return DualEncoder(encoder, Head.orthogonal(encoder.width, 5, has_tanh=False, seed=4))
        return DualEncoder(encoder)

    def run(self, noise: float, dataset: Path, parent: Run | None = None, **noted: Any) -> str:
        """Log a run with a retriever, whose metadata has what is ``noted``; returns its id."""
        run = open_run(self.uri, "tests", f"noise-{noise}", self.output, parent=parent)
        settings = {"dataset": dataset, "experiment": "tests", "training.selection_metric": "R@10"}
        settings |= {"evaluation.propensity_a": 0.55, "evaluation.propensity_b": 1.5}
        run.log_parameters(settings, {})
        folder = self.output / f"{run.id}-made"
        self.model(noise).save(folder / "model", MAX_LENGTH)
        opened = Dataset(dataset)
        made = folder / "made"
        write_retriever(made, load_model(folder / "model"), opened, self.data, FLAT)
        metadata = {"dataset_fingerprint": opened.fingerprint, "num_ads": 40, **noted}
        log_retriever(run, made, ["robin"], metadata)
        run.log_metrics({"best/validation/R@10": 1 / (1 + noise)})
        run.close("FINISHED")
        return run.id

    def logged(self, noise: float, dataset: Path) -> str:
        """Log a run with a retriever; returns the retriever's URI."""
        return uri_of(self.registry.find_logged(self.run(noise, dataset), None)[1])

    def champion(self, name: str, noise: float, dataset: Path) -> LoggedRetriever:
        """Log a run with a retriever, which becomes the champion of that name."""
        registry = self.registry
        run_id, model_id = registry.find_logged(self.run(noise, dataset), None)
        choose(registry, name, run_id, model_id)
        return registry.look_up(uri_of(model_id))
