"""Register a run's retriever and make it the champion if it beats the current one.

Examples:
    python jobs/promote.py outputs/runs/NAME --name foldoc
    python jobs/promote.py MLFLOW_RUN_ID --name foldoc --metric R@10     a sweep's id: its best run
    python jobs/promote.py outputs/runs/NAME --name foldoc@challenger
    python jobs/promote.py outputs/runs/NAME --name foldoc --test next_week
    python jobs/promote.py --restore --name foldoc                       the previous champion

A run that is no better is not promoted: the exit code is 3 then, and 2 after an error, or if the
champion was moved while the two were compared. You can also set the alias by hand in the MLflow UI.
"""

from typing import Annotated

import tyro

from ramen_ray.command_line import StoreSettings, parse_settings, run_job
from ramen_ray.config import ConfigError
from ramen_ray.long_work import logged_progress
from ramen_ray.orchestration.deploy.promotion_rules import PromotionRules
from ramen_ray.printed_commands import asking

NOT_PROMOTED = 3
"""Exit code: all went well, and the champion stays."""


class PromoteSettings(PromotionRules, StoreSettings):
    """Promote a run's retriever, or restore an earlier one."""

    run: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[RUN]")] = None
    """Folder of a finished run or sweep, or the MLflow run id of either."""
    name: str
    """Registered model; NAME@challenger sets that alias instead of champion."""
    restore: bool = False
    """Move the alias back to the version that had it before, and was not deleted since."""


def main() -> int | None:
    """Promote or restore, and print what decided."""
    settings = parse_settings(PromoteSettings, __doc__)
    if settings.run is None and not settings.restore:
        raise ConfigError("give the run to promote, or --restore")
    registry = settings.registry()
    from ramen_ray.orchestration.deploy.retrievers import find_candidate
    from ramen_ray.tracking.aliases import name_and_alias, restore

    name, alias = name_and_alias(settings.name)
    if settings.restore:
        before, now = restore(registry, name, alias)
        for number in now.gone:
            print(f"version {number} is deleted, and passed over")
        no_longer = f", no longer version {before.version}" if before.has_alias else ""
        print(f"{name}@{alias} is version {now.version} again{no_longer}")
        print(f"next: {asking(f'models:/{name}@{alias}', settings.output)}")
        return None
    assert settings.run is not None, "or it is refused above"
    find_candidate(registry, settings.run, settings.name, settings.metric)
    with logged_progress("loading libraries"):
        from ramen_ray.orchestration.deploy.promotion import IncomparableError, promote
        from ramen_ray.reports.report_tables import difference_table, show
    try:
        promotion = promote(registry, settings.run, settings.name, settings)
    except IncomparableError as error:
        raise IncomparableError(f"{error}; --force promotes it anyway") from error
    if promotion.origin:
        print(promotion.origin)
    for comparison in promotion.compared:
        print(f"on {comparison.queries}:")
        show(difference_table(comparison.candidate, comparison.differences, more=comparison.kept))
    if not promotion.promoted:
        print(f"version {promotion.version} is not promoted: {promotion.verdict}")
        print(f"next: {asking(f'models:/{name}/{promotion.version}', settings.output)}")
        return NOT_PROMOTED
    print(f"{name}@{alias} is version {promotion.version}: {promotion.verdict}")
    print(f"next: {asking(f'models:/{name}@{alias}', settings.output)}")
    return None


if __name__ == "__main__":
    run_job(main)
