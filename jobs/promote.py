"""Register a run's retriever and make it the champion if it beats the present one.

Examples:
    python jobs/promote.py outputs/runs/NAME --name foldoc
    python jobs/promote.py MLFLOW_RUN_ID --name foldoc --metric R@10     a sweep's id: its best run
    python jobs/promote.py outputs/runs/NAME --name foldoc@challenger
    python jobs/promote.py --restore --name foldoc                       what was champion before

You can also set the alias by hand in the MLflow UI.
"""

import sys
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from ramen_ray.command_line import parse_call, run_job
from ramen_ray.config import ConfigError
from ramen_ray.orchestration.deployment.promotion import CHAMPION, promote
from ramen_ray.reports.run import difference_table
from ramen_ray.tracking.registry import Registry, RegistryError
from ramen_ray.tracking.runs import tracking_uri


def choose(
    run: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[RUN]")] = None,
    /,
    *,
    name: str,
    metric: str | None = None,
    force: bool = False,
    restore: bool = False,
    output: Path = Path("outputs"),
) -> None:
    """Promote a run's retriever, or restore an earlier one.

    Args:
        run: Folder of a finished run or sweep, or the MLflow run id of either.
        name: Registered model; NAME@challenger sets that alias instead of champion.
        metric: Test metric that decides, such as R@10; default: the run's selection metric.
        force: Promote it even if it does not beat the champion.
        restore: Move the alias back to the version that had it before.
        output: Folder with the MLflow store; ignored if MLFLOW_TRACKING_URI is set.
    """
    registry = Registry(tracking_uri(output))
    name, at, given = name.partition("@")
    alias = given if at else CHAMPION
    if restore:
        before, now = registry.restore(name, alias)
        print(f"{name}@{alias} is version {now} again, no more version {before}")
        return
    if run is None:
        raise ConfigError("name the run to promote, or give --restore")
    found = promote(registry, run, name, alias, metric, force)
    if found.origin:
        print(found.origin)
    if found.differences:
        Console(width=110).print(difference_table(found.candidate, found.differences))
    if not found.promoted:
        raise RegistryError(f"version {found.version} is not promoted: {found.verdict}")
    print(f"{name}@{alias} is version {found.version}: {found.verdict}")


def main() -> None:
    """Parse and choose."""
    parse_call(choose, __doc__)()


if __name__ == "__main__":
    sys.exit(run_job(main))
