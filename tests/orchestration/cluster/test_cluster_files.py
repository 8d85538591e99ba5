"""The descriptions of clusters fit their schemas, and their commands are commands of ours."""

import json
import shlex
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import pytest
import ray
import yaml
from jsonschema import ValidationError, validate
from support import ROOT

from jobs.serve import AnswerSettings, application
from jobs.train import JobSettings
from ramen_ray.command_line import parse_with_run_config

CLUSTER = ROOT / "cluster.yaml"
SCHEMA = json.loads((files("ray.autoscaler") / "ray-schema.json").read_text())
KUBERAY = json.loads(Path(__file__).with_name("kuberay.json").read_text())


def _described(name):
    return yaml.safe_load((ROOT / name).read_text())


def test_cluster_yaml_fits_the_schema_that_ray_ships():
    config = yaml.safe_load(CLUSTER.read_text())
    validate(config, SCHEMA)
    worker = config["available_node_types"]["gpu_worker"]
    assert worker["min_workers"] == 0 < worker["max_workers"]
    assert worker["node_config"]["InstanceMarketOptions"]["MarketType"] == "spot"


@pytest.mark.parametrize(
    ("name", "key"),
    [("kubernetes.yaml", "rayClusterSpec"), ("kubernetes_serve.yaml", "rayClusterConfig")],
)
def test_what_kubernetes_is_given_fits_the_schema_of_kuberay(name, key):
    described = _described(name)
    validate(described, KUBERAY)
    cluster = described["spec"][key]
    assert cluster["rayVersion"] == ray.__version__
    assert cluster["authOptions"]["mode"] == "token"
    cluster["headGroupSpec"]["replicas"] = 1
    with pytest.raises(ValidationError, match="'replicas'"):
        validate(described, KUBERAY)


def test_the_job_for_kubernetes_asks_for_what_its_pods_have(dataset_path):
    rayjob = _described("kubernetes.yaml")
    python, job, _, *words = shlex.split(rayjob["spec"]["entrypoint"])
    assert (python, Path(job).name) == ("python", "train.py")
    at = words.index("--dataset")
    here = [*words[:at], "--dataset", str(dataset_path), *words[at + 2 :]]
    _, config = parse_with_run_config(JobSettings(), "", ["tiny", *here])
    (group,) = rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (worker,) = group["template"]["spec"]["containers"]
    assert group["maxReplicas"] == config.workers.num_workers > config.workers.fewest
    assert int(worker["resources"]["requests"]["cpu"]) >= config.workers.cpus_per_worker
    assert config.output.startswith(worker["volumeMounts"][0]["mountPath"])


def test_the_server_for_kubernetes_has_room_for_its_replicas():
    schema = pytest.importorskip("ray.serve.schema", reason="ray[serve] is not installed")
    spec = _described("kubernetes_serve.yaml")["spec"]
    described = schema.ServeDeploySchema.model_validate(yaml.safe_load(spec["serveConfigV2"]))
    (served,) = described.applications
    module, _, name = served.import_path.partition(":")
    assert getattr(import_module(module), name) is application
    settings = AnswerSettings(**served.args)
    (group,) = spec["rayClusterConfig"]["workerGroupSpecs"]
    (worker,) = group["template"]["spec"]["containers"]
    num_cpus = group["minReplicas"] * int(worker["resources"]["requests"]["cpu"])
    assert num_cpus == settings.replicas + 1  # and the server
