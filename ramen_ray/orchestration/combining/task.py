"""What the workers of a combiner's training receive; it imports little, as the driver needs it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramen_ray.bases import Part
from ramen_ray.method.metrics.judgement import Propensity
from ramen_ray.orchestration.combining.settings import CombineSettings
from ramen_ray.tracking.runs import Run

if TYPE_CHECKING:
    from ramen_ray.method.novel_ads.evaluation import Evaluation
    from ramen_ray.orchestration.run.training import Process


@dataclass(frozen=True)
class CombineTask:
    """The task of training a combiner.

    Attributes:
        settings: what is trained.
        model: folder of the run's best model.
        part: which of its vectors answer.
        prepared: folder of the run's prepared dataset.
        sibling: folder of the prepared one-shot sibling, if clicks are revealed.
        embeddings: file of the frozen embeddings.
        folder: where the result goes.
        propensity: constants of the metrics.
        run: the MLflow run.
    """

    settings: CombineSettings
    model: str
    part: Part
    prepared: str
    sibling: str | None
    embeddings: str
    folder: str
    propensity: Propensity
    run: Run

    def train(self, process: "Process") -> "Evaluation | None":
        """Train to the end in a worker's process; the first one evaluates."""
        from ramen_ray.orchestration.combining.worker import run_worker

        return run_worker(self, process)
