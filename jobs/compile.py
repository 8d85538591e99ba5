"""Make a retriever answer faster on CPUs.

Examples:
    python jobs/compile.py --model models:/NAME@champion
    python jobs/compile.py --model models:/NAME@challenger --int8

The encoder is compiled to ONNX, and with --int8 computes in 8-bit integers. The result needs ONNX
Runtime in place of torch. If it is faster and not measurably worse it becomes a new version, which
takes over the alias if one was named; jobs/promote.py --restore moves the alias back.
"""

import sys
from pathlib import Path

from rich.console import Console

from ramen_ray.command_line import parse_call, run_job
from ramen_ray.orchestration.deployment.compilation import compile_for_cpus
from ramen_ray.reports.run import difference_table
from ramen_ray.tracking.registry import Registry, RegistryError
from ramen_ray.tracking.runs import tracking_uri


def compile_model(model: str, int8: bool = False, output: Path = Path("outputs")) -> None:
    """Compile a retriever's encoder.

    Args:
        model: The retriever: models:/NAME@champion, models:/NAME/VERSION or models:/MODEL_ID.
        int8: Compute in 8-bit integers: faster still, and not quite the same.
        output: Folder with the MLflow store; ignored if MLFLOW_TRACKING_URI is set.
    """
    made = compile_for_cpus(Registry(tracking_uri(output)), model, int8, output.absolute())
    table = difference_table(made.metrics, made.differences, ("compiled", "original"))
    Console(width=110).print(table)
    print(f"one query: {made.milliseconds:.2f} ms, before {made.milliseconds_before:.2f} ms")
    print(f"scores: differ by at most {made.score_difference:.1e}")
    if made.refusal:
        raise RegistryError(f"{made.model_uri} does not take the place of {model}: {made.refusal}")
    print(f"retriever: {made.model_uri}")


def main() -> None:
    """Parse and compile."""
    parse_call(compile_model, __doc__)()


if __name__ == "__main__":
    sys.exit(run_job(main))
