"""Runs in Postgres, retrievers in an S3-compatible store: train, sweep, promote, answer, serve."""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from conftest import free_port
from mlflow.tracking import MlflowClient
from stores import served_by_mlflow
from support import running, running_postgres, the_error
from written_out import column_of

from jobs import predict, promote, train, tune
from ramen_ray.config import overlay, write_config
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.tracking.registry import Registry

pytest.importorskip("psycopg", reason="pip install -e '.[stores]'")

pytestmark = pytest.mark.slow

BUCKET = "retrievers"
CHAMPION = "models:/dictionary@champion"


@dataclass(frozen=True)
class Stores:
    """A client of the S3-compatible store, and the address of MLflow's server."""

    s3: Any
    server: str

    def files(self):
        """List the files in the bucket."""
        found = self.s3.list_objects_v2(Bucket=BUCKET)
        return {file["Key"] for file in found.get("Contents", [])}


def _programs():
    """Return the folder of Postgres' programs."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    if not debian and on_path is None:
        pytest.skip("Postgres is not installed: apt-get install postgresql")
    return (debian[-1] if debian else Path(str(on_path))).parent


@pytest.fixture(scope="module")
def database():
    """A database of its own."""
    with running_postgres(_programs(), free_port()) as address:
        yield address


@pytest.fixture(scope="module")
def stores(database, s3, tmp_path_factory, request):
    """The servers, and a Ray whose processes know how to reach them."""
    folder = tmp_path_factory.mktemp("servers")
    port = free_port()
    server = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"]
    command += ["--port", str(port), "--backend-store-uri", database]
    command += ["--artifacts-destination", f"s3://{BUCKET}/kept"]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MLFLOW_S3_ENDPOINT_URL", s3.meta.endpoint_url)
        environment.setenv("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
        s3.create_bucket(Bucket=BUCKET)
        with running(command, folder / "server.log", f"{server}/health"):
            ray.shutdown()  # the processes of another module's know nothing of these servers
            request.getfixturevalue("cluster")
            yield Stores(s3, server)
            ray.shutdown()
    mlflow.set_tracking_uri(None)


@pytest.fixture
def client(stores, run_here, monkeypatch):
    """MLflow's client; jobs that are run here use the same server."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", stores.server)
    return MlflowClient(stores.server)


def _file(config, folder, **changes):
    file = folder / f"{changes['name']}.json"
    write_config(overlay(config, changes), file)
    return file


def test_a_team_trains_sweeps_promotes_answers_and_serves(
    stores, client, small_run, dataset_path, done, tmp_path
):
    output = Path(small_run.output)
    done(train, "--config", _file(small_run, tmp_path, name="first"))
    assert any(key.startswith("kept/") for key in stores.files())  # through MLflow's server
    done(promote, output / "runs" / "first", "--name", "dictionary")

    client.create_experiment("direct", artifact_location=f"s3://{BUCKET}/direct")
    file = _file(small_run, tmp_path, name="swept", experiment="direct")
    flags = ["--space", "optimizer", "--num-samples", "2", "--no-stop-early"]
    done(tune, "--config", file, *flags)
    assert any(key.endswith("index.faiss") for key in stores.files() if key.startswith("direct/"))
    sweep = output / "sweeps" / "swept"
    said = done(promote, sweep, "--name", "dictionary", "--force")
    assert "version 1" in said
    assert "version 2" in said

    texts = column_of(Dataset(dataset_path), "queries/test")
    queries = tmp_path / "queries.parquet"
    answered = tmp_path / "answers"
    pq.write_table(pa.table({"text": texts}), queries)
    flags = ["--model", CHAMPION, "--queries", str(queries), "--answers", str(answered)]
    done(predict, *flags, "--top-k", 3)
    expected = Registry(stores.server).load(CHAMPION).answer(texts, 3)
    assert pq.read_table(answered)["ads"].to_pylist() == expected["ads"].to_pylist()
    with served_by_mlflow(CHAMPION, tmp_path / "serving.log") as post:
        rows = post({"inputs": texts, "params": {"top_k": 3}})
    assert [row["ads"] for row in rows] == expected["ads"].to_pylist()


def test_artifacts_that_cannot_be_kept_are_told_before_anything_is_trained(
    client, small_run, run_here, tmp_path
):
    client.create_experiment("misspelt", artifact_location="s3://misspelt/artifacts")
    file = _file(small_run, tmp_path, name="unkept", experiment="misspelt")
    code, said = run_here(train, "--config", file)
    assert code == 2, said
    told = the_error(said)
    assert "s3://misspelt/artifacts/" in told
    assert not (Path(small_run.output) / "runs" / "unkept").exists()
