import json
from importlib.resources import files

import yaml
from jsonschema import validate
from support import ROOT

CLUSTER = ROOT / "cluster.yaml"
SCHEMA = json.loads((files("ray.autoscaler") / "ray-schema.json").read_text())


def test_cluster_yaml_fits_the_schema_that_ray_ships():
    config = yaml.safe_load(CLUSTER.read_text())
    validate(config, SCHEMA)
    worker = config["available_node_types"]["gpu_worker"]
    assert worker["min_workers"] == 0 < worker["max_workers"]
    assert worker["node_config"]["InstanceMarketOptions"]["MarketType"] == "spot"


def test_every_node_shares_the_output_folder():
    config = yaml.safe_load(CLUSTER.read_text())
    assert any("/shared" in command for command in config["initialization_commands"])
    assert "--volume=/shared:/shared" in config["docker"]["run_options"]
