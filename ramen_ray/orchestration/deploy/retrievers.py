"""Which retriever a user means: by its URI, or by the run or the sweep that made it."""

from pathlib import Path

from ramen_ray.method.metrics.ranking import METRICS
from ramen_ray.orchestration.run.directory import RUN_FILE, RUNS, RunDirectory
from ramen_ray.tracking.aliases import name_and_alias
from ramen_ray.tracking.registry import Registry, RegistryError, uri_of
from ramen_ray.tracking.runs import MODELS


def retriever_uri(registry: Registry, named: str | None, output: Path) -> str:
    """Return the URI of a retriever that is ``named`` by it, or by a run's or sweep's folder or id.

    None names that of the run in ``output``, the folder that has ``runs``, that was finished last.
    Raises a RegistryError if there is no such folder, finished run or retriever.
    """
    if named is not None and named.startswith(MODELS):
        registry.look_up(named)
        return named
    if named is None:
        files = (output / RUNS).glob(f"*/{RUN_FILE}")
        latest_first = sorted(files, key=lambda file: -file.stat().st_mtime)
        finished = (file for file in latest_first if RunDirectory(file.parent).is_finished)
        if (last := next(finished, None)) is None:
            raise RegistryError(
                f"{output / RUNS} has no finished run; train one (python jobs/train.py), or name a "
                f"retriever, such as models:/NAME@champion"
            )
        named = str(last.parent)
    return uri_of(find_logged(registry, named, None)[1][1])


def find_candidate(
    registry: Registry, run: str, named: str, metric: str | None
) -> tuple[str, tuple[str, str]]:
    """Return what :func:`find_logged` does, of a run to promote as ``named``, ``NAME@ALIAS``.

    Raises a RegistryError, too, if name, alias or metric cannot be.
    """
    if metric is not None and metric not in METRICS:
        raise RegistryError(f"the metric {metric!r} is not one of {', '.join(METRICS)}")
    registry.check_name(*name_and_alias(named))
    return find_logged(registry, run, metric)


def find_logged(registry: Registry, run: str, metric: str | None) -> tuple[str, tuple[str, str]]:
    """Return a run's id, and what :meth:`Registry.find_logged` returns; or its errors."""
    run_id = mlflow_run_id(run)
    return run_id, registry.find_logged(run_id, metric)


def mlflow_run_id(run: str) -> str:
    """Return the id of a folder's MLflow run, or ``run``, if it is an id; or a RegistryError."""
    folder = Path(run)
    if RunDirectory(folder).is_run:
        run_id = RunDirectory(folder).mlflow_run_id
        if run_id is None:
            raise RegistryError(f"the run {run} has not started yet")
        return run_id
    if folder.is_dir() or len(folder.parts) > 1:  # which no id is
        lack = "is not that of a run" if folder.is_dir() else "does not exist"
        raise RegistryError(f"the folder {run} {lack}; give one such as outputs/{RUNS}/NAME")
    return run
