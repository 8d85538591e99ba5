"""Regulariser weights that are moved online, by how far each regulariser agrees with the task.

RAMEN says that reliance on the graph is adjusted during training by the confidence in its links
(section 1.1), and gives each "bandit" a learning rate of 0.01 (appendix A); it says no more. Our
reading:

- One weight per (side, anchor set), because a graph can be right for queries and wrong for ads.
- The evidence is a row's *pull*. The task's gradient at a query's (or ad's) embedding says where
  the task wants it; a regulariser draws it to its anchor. The pull is the cosine of that descent
  with the row's own anchor, less that with the mean of the step's anchors of this side, which is
  what shuffled anchors would give. So a random graph has no pull, whatever all texts have in
  common, and rows that the task leaves alone have no say.
- A mean pull is trusted as far as it stands out of its noise: z = mean / standard error, over rows
  that are forgotten by 5 % a step.
- A step multiplies the weight by exp(0.01 clip(z - 2, -1, 1)): up with evidence, down without.
  Multiplied, a useless graph's weight vanishes equally fast from any start, and with steps of 1 %
  no single batch decides.
- The weight that a run starts from is also the bound: it is the reliance that was asked for, which
  evidence takes away and gives back. What starts at 0 is no part of the run.

Where task and regulariser balance, their gradients oppose each other by definition. Late in a run
even a good graph is therefore let go of slowly; it has shaped the embeddings by then.

Shapes: B rows of the global batch, C columns of a draw, U distinct texts, D width, K regularisers.
"""

import torch
from torch import Tensor
from torch.nn import functional

from ramen_ray.data.arrays import Int64s
from ramen_ray.method.distributed import sum_over_workers

MEMORY = 0.95
CONFIDENCE = 2.0


class Adaptation:
    """The weights of a run's loss terms and the evidence behind them, the same on every worker.

    Attributes:
        weights: (1 + K,) float32: 1 for the task, then the regularisers' in the terms' order.
        evidence: (K, 3) float64: decayed sums over rows of 1, pull and squared pull.
    """

    def __init__(self, start: list[float], step_size: float, device: torch.device) -> None:
        """Start from the fixed weights of all terms, which are also the upper bounds."""
        self.bounds = torch.tensor(start, device=device)
        self.step_size = step_size
        self.weights = self.bounds
        self.evidence = torch.zeros(len(start) - 1, 3, dtype=torch.float64, device=device)

    def observe(
        self, task_loss: Tensor, embeddings_UD: Tensor, position: Int64s, node_columns: list[int]
    ) -> None:
        """Move the weights by one step's evidence.

        Args:
            task_loss: this worker's share of the task term, with its graph down to the embeddings.
            embeddings_UD: (U, D) the step's distinct texts.
            position: (B, C) int64, where query, ad, and each regulariser's anchors stand among the
                U; -1 where nothing was drawn. Later columns are not looked at.
            node_columns: (K,) the column of each regulariser's nodes: 0 for queries, 1 for ads.
        """
        (gradient_UD,) = torch.autograd.grad(task_loss, embeddings_UD, retain_graph=True)
        embeddings_UD = embeddings_UD.detach()
        places = torch.from_numpy(position).to(embeddings_UD.device, non_blocking=True)
        rows = places[:, :2].T
        gradients_2BD = sum_over_workers(gradient_UD[rows])
        descents_2BD = tangent(-gradients_2BD, embeddings_UD[rows])
        found = torch.stack(
            [
                pull_sums(descents_2BD[nodes], embeddings_UD, places[:, anchors])
                for anchors, nodes in enumerate(node_columns, start=2)
            ]
        )
        self.evidence = MEMORY * self.evidence + found
        steps = (evidence_scores(self.evidence) - CONFIDENCE).clamp(-1, 1).float()
        factors = functional.pad(torch.exp(self.step_size * steps), (1, 0), value=1.0)
        self.weights = torch.minimum(self.weights * factors, self.bounds)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps."""
        return {"weights": self.weights, "evidence": self.evidence}

    def load_state_dict(self, content: dict[str, Tensor]) -> None:
        """Put back what :meth:`state_dict` gave."""
        self.weights = content["weights"].to(self.bounds.device)
        self.evidence = content["evidence"].to(self.bounds.device)


def tangent(vectors_BD: Tensor, embeddings_BD: Tensor) -> Tensor:
    """Drop from vectors (..., D) what runs along the unit embeddings, which no update can follow.

    Returns:
        (..., D) unit vectors; zero where nothing is left.
    """
    along = (vectors_BD * embeddings_BD).sum(dim=-1, keepdim=True)
    return functional.normalize(vectors_BD - along * embeddings_BD, dim=-1, eps=1e-30)


def pull_sums(descent_BD: Tensor, embeddings_UD: Tensor, anchors_B: Tensor) -> Tensor:
    """Sum up one regulariser's pulls in a step.

    Args:
        descent_BD: (B, D) unit directions in which the task moves the rows; zero for none.
        embeddings_UD: (U, D) the step's distinct texts.
        anchors_B: (B,) int64, where each row's anchor stands among the U; -1 for none.

    Returns:
        (3,) float64: rows with a descent and an anchor, their pulls' sum, and that of the squares.
    """
    linked_B1 = (anchors_B >= 0)[:, None]
    anchors_BD = embeddings_UD[anchors_B.clamp(min=0)]
    mean_D = (anchors_BD * linked_B1).sum(dim=0) / linked_B1.sum().clamp(min=1)
    counts_B = linked_B1[:, 0] & descent_BD.any(dim=-1)
    pulls_B = ((descent_BD * (anchors_BD - mean_D)).sum(dim=-1) * counts_B).double()
    return torch.stack([counts_B.sum(), pulls_B.sum(), (pulls_B**2).sum()])


def evidence_scores(evidence_K3: Tensor) -> Tensor:
    """Return (K,) mean pulls over their standard errors, 0 without rows, of (K, 3) sums."""
    count, total, squares = evidence_K3.unbind(dim=1)
    count = count.clamp(min=1)
    mean = total / count
    variance = (squares / count - mean**2).clamp(min=0)
    return (mean / (variance / count).sqrt()).nan_to_num(0.0)
