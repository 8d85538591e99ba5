"""What every worker runs: train classifiers and combiner; the first one evaluates them."""

from dataclasses import dataclass
from pathlib import Path

from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.distributed import world
from ramen_ray.method.model.dual_encoder import load_model
from ramen_ray.method.novel_ads.evaluation import Evaluation, RevealedClicks, compare
from ramen_ray.method.novel_ads.representation import COMBINER_FOLDER, open_combined_ads
from ramen_ray.method.novel_ads.training import CombinerModel
from ramen_ray.method.training.step import TrainState
from ramen_ray.orchestration.combining.build import Combining
from ramen_ray.orchestration.combining.embeddings import open_embedded
from ramen_ray.orchestration.combining.inputs import revealed_clicks
from ramen_ray.orchestration.combining.task import CombineTask
from ramen_ray.orchestration.run.checkpoints import Checkpoints
from ramen_ray.orchestration.run.loop import train
from ramen_ray.orchestration.run.progress import RunLog
from ramen_ray.orchestration.run.training import Plan, Process, Setup, start_or_resume

NUM_CHECKPOINTS = 10


@dataclass(frozen=True, kw_only=True)
class CombinerSetup(Setup[CombinerModel]):
    """What a worker trains a combiner with."""

    combining: Combining

    def new_model(self) -> CombinerModel:
        """Build the model that training starts from, on this worker's device."""
        return self.combining.new_model(self.process.device)

    def open_model(self, checkpoint: Path) -> CombinerModel:
        """Open the model of a checkpoint."""
        model = self.new_model()
        model.load(checkpoint)
        return model

    def new_state(self, model: CombinerModel) -> TrainState:
        """Build what changes besides the model."""
        return self.combining.new_state(model)

    def save_model(self, model: CombinerModel, checkpoint: Path) -> None:
        """Write the combiner; the part that trains the classifiers writes these."""
        model.save(checkpoint)


def run_worker(task: CombineTask, process: Process) -> Evaluation | None:
    """Train to the end; the first worker then writes the combiner and evaluates it as served."""
    process.settle(task.settings.seed, task.settings.workers)
    data, folder = Prepared(Path(task.prepared)), Path(task.folder)
    sibling = None if task.sibling is None else Prepared(Path(task.sibling))
    model = load_model(Path(task.model), part=task.part)
    embedded, of_sibling = open_embedded(model, data, sibling, Path(task.embeddings))
    combining = Combining.of(task.settings, embedded, model)
    objective, plan = combining.objective(), plan_of(combining)
    run = start_or_resume(
        CombinerSetup(
            folder=folder,
            process=process,
            checkpoints=Checkpoints(folder, process.device),
            plan=plan,
            objective=objective,
            sampler=combining.sampler,
            log=RunLog.of_first_worker(task.run, folder, objective, plan.total_steps),
            advice="lower combiner.lr, or classifiers.lr",
            combining=combining,
        )
    )
    train(run)
    if world()[0] != 0:
        return None
    combining.combined_ads(run.model).save(folder / COMBINER_FOLDER)
    combined = open_combined_ads(folder / COMBINER_FOLDER)
    revealed: RevealedClicks | None = None
    if sibling is not None and of_sibling is not None:
        ads, rows = revealed_clicks(sibling)
        revealed = ads, of_sibling.take(rows)
    return compare(embedded, combined, revealed, task.propensity)


def plan_of(combining: Combining) -> Plan:
    """Plan checkpoints at about every tenth of the epochs, and where the combiner's steps begin."""
    per_epoch, total = combining.sampler.steps_per_epoch, combining.total_steps
    every = max(total // per_epoch // NUM_CHECKPOINTS, 1) * per_epoch
    stops = {*range(every, total, every), combining.first_steps, total} - {0}
    return Plan(per_epoch, sorted(stops))
