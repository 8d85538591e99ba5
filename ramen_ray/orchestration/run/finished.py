"""Find finished runs by what a user names them: a folder, an MLflow run, a model, or nothing."""

from pathlib import Path

from ramen_ray.orchestration.run.directory import RUN_FILE, RUNS, RunDirectory
from ramen_ray.tracking.registry import Registry, RegistryError, uri_of
from ramen_ray.tracking.runs import MODELS


def retriever_uri(registry: Registry, named: str | None, output: Path) -> str:
    """Return the URI of a retriever.

    Args:
        registry: of the store that has it.
        named: its URI, the folder of a run or a sweep, or an MLflow run id; None for the run in
            ``output`` that was finished last.
        output: the folder that has ``runs``.

    Raises:
        RegistryError: there is no such folder, no finished run, or no retriever.
    """
    if named is not None and named.startswith(MODELS):
        return named
    run = str(_last_finished(output).path) if named is None else named
    return uri_of(registry.find_logged(mlflow_run_id(run), None)[1])


def mlflow_run_id(run: str) -> str:
    """Return the id of the MLflow run of a run's or a sweep's folder, or ``run``, if it is an id.

    Raises:
        RegistryError: the folder does not exist, is not that of a run, or its run has not begun.
    """
    folder = Path(run)
    if (folder / RUN_FILE).is_file():
        found = RunDirectory(folder).notes.get("mlflow_run_id")
        if found is None:
            raise RegistryError(f"the run {run} has not started yet")
        return str(found)
    if folder.is_dir() or len(folder.parts) > 1:  # which no id is
        lack = "is not that of a run" if folder.is_dir() else "does not exist"
        raise RegistryError(f"the folder {run} {lack}; give one such as outputs/{RUNS}/NAME")
    return run


def _last_finished(output: Path) -> RunDirectory:
    files = sorted((output / RUNS).glob(f"*/{RUN_FILE}"), key=lambda file: file.stat().st_mtime)
    for file in reversed(files):
        if RunDirectory(file.parent).notes.get("finished"):
            return RunDirectory(file.parent)
    raise RegistryError(
        f"{output / RUNS} has no finished run; train one (python jobs/train.py), or name a "
        f"retriever, such as models:/NAME@champion"
    )
