"""Retrievers in MLflow: models that answer queries wherever MLflow loads or serves them."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import faiss
import pyarrow.parquet as pq
from mlflow.entities import LoggedModelOutput, LoggedModelStatus
from mlflow.models import Model, ModelSignature
from mlflow.pyfunc import save_model
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
from mlflow.types.schema import AnyType, Array, Object, Property

from ramen_ray.answering import keep_code
from ramen_ray.data.store.made_folder import owned_folder, write_checksums
from ramen_ray.data.store.schemas import FILTER
from ramen_ray.tracking.registry import NAME, RUNTIME
from ramen_ray.tracking.runs import Run

DEVICE = "device"  # key of the model's configuration
ADAPTER = Path(__file__).with_name("mlflow_model.py")
INPUTS = Schema([ColSpec(AnyType())])  # with strings, null would become the query "None"
OUTPUTS = Schema(
    [
        ColSpec(Array(DataType.string), "ad_ids"),
        ColSpec(Array(DataType.string), "ads"),
        ColSpec(Array(DataType.double), "scores"),
        ColSpec(DataType.string, "doubt", required=False),
        ColSpec(DataType.string, "error", required=False),
    ]
)
NO_COLUMNS = ("no columns to filter by",)  # MLflow ignores parameters that it does not know


def log_retriever(run: Run, folder: Path, example: list[str], metadata: Mapping[str, Any]) -> str:
    """Log the retriever in ``folder``, with an ``example`` of queries; returns its model's id."""
    names = {"mlflow", "numpy", "pandas", "pyarrow", "safetensors", "tokenizers"}
    if (folder / "encoder" / "onnx").is_dir():
        runtime = "onnxruntime"
    elif (folder / "encoder" / "0_StaticEmbedding").is_dir():
        runtime = "numpy"
    else:
        runtime = "torch"
        names.add("transformers")
    names.add(runtime)
    # a build such as 2.13.0+cpu is not on the index; faiss-gpu reads and writes what faiss-cpu does
    pins = [f"{name}=={version(name).partition('+')[0]}" for name in names]
    pins.append(f"faiss-cpu=={faiss.__version__}")
    client = run.client
    experiment_id = client.get_run(run.id).info.experiment_id
    of_run = client.search_logged_models([experiment_id], f"source_run_id = '{run.id}'")
    # What a process that was killed has begun is finished.
    begun = next((logged for logged in of_run if logged.status == LoggedModelStatus.PENDING), None)
    model = begun or client.create_logged_model(experiment_id, NAME, run.id, model_type=NAME)
    keep_code(folder)
    write_checksums(folder)
    with owned_folder(folder.parent) as aside:
        path = aside / "model"
        save_model(
            str(path),
            python_model=str(ADAPTER),
            artifacts={"retriever": str(folder)},
            signature=ModelSignature(INPUTS, OUTPUTS, _parameters(folder)),
            input_example=(example, {"top_k": 1}),
            pip_requirements=sorted(pins),
            metadata={**metadata, RUNTIME: runtime},
            model_config={DEVICE: None},
            mlflow_model=Model(
                artifact_path=model.artifact_location,
                run_id=run.id,
                model_id=model.model_id,
                model_uuid=model.model_id,
            ),
        )
        client.log_model_artifacts(model.model_id, str(path))
    client.finalize_logged_model(model.model_id, "READY")
    client.log_outputs(run.id, [LoggedModelOutput(model.model_id, step=0)])
    return str(model.model_id)


def _parameters(folder: Path) -> ParamSchema:
    """Describe what a request may set: ``filter`` has a value or a list of values by column."""
    columns = pq.read_schema(folder / "ads.parquet").names
    names = [name.removeprefix(FILTER) for name in columns if name.startswith(FILTER)]
    by = [Property(name, AnyType(), required=False) for name in names or NO_COLUMNS]
    most = [Property(name, DataType.long, required=False) for name in names or NO_COLUMNS]
    return ParamSchema(
        [
            ParamSpec("top_k", DataType.long, 10),
            ParamSpec("filter", Object(by), {}),
            ParamSpec("min_score", DataType.double, None),
            ParamSpec("at_most", Object(most), {}),
            ParamSpec("columns", DataType.string, [], shape=(-1,)),
        ]
    )
