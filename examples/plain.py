"""The method on one page, without Ray and MLflow: what this command computes, to rounding.

    python jobs/train.py bag-unidec --base.order random --base.hard-negatives none
    python examples/plain.py

A bag of token embeddings, and for each ad a free vector (its classifier), learn to find ads for
queries (UniDEC), while graphs pull ads to their anchors, each as far as that helps (RAMEN). Draws
are seeded as the job's. Data are small, and all train queries have clicks. Read from top to bottom.

Shapes: B queries of a batch, L ads of its pool, N nodes and A anchors of a graph, D width.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus
from torch.optim.lr_scheduler import LambdaLR

from ramen_ray.config import LossConfig, RunConfig, overlay
from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.hashing import mix, uniforms
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.model.dual_encoder import tokenize_texts
from ramen_ray.method.model.encoder import build_bag
from ramen_ray.method.retrieval.search import drop_filtered, most_filters, search
from ramen_ray.method.sampling.batches import Stream, draw_ads, random_order
from ramen_ray.presets import bag_unidec

SPLITS = ("train", "validation", "test")
ERROR = 0.02  # probability that any useless graph ever pulls
IN_BATCH = {"base.order": "random", "base.hard_negatives": "none"}


class Data:
    """A dataset directory in memory; clicks and edges are dense, and those to draw from sparse."""

    def __init__(self, config: RunConfig) -> None:
        dataset = Dataset(config.dataset)
        self.clicked = {split: dataset.clicks(split).toarray() > 0 for split in SPLITS}
        self.query_ids = np.argsort(mix(np.arange(len(self.clicked["train"]))))  # a fixed shuffle
        self.clicked["train"] = self.clicked["train"][self.query_ids]
        queries, ads = self.clicked["train"].nonzero()
        self.clicks = Csr.from_pairs(queries, ads, len(self.query_ids))
        self.graphs, self.linked, self.filters = {}, {}, {}
        for name in sorted(config.regularization.lambda_z):
            edges = dataset.read(f"edges/{name}/ad")
            ads, anchors, weights = (column.to_numpy() for column in edges.itercolumns())
            shape = dataset.num_rows("ads"), dataset.num_rows(f"anchors/{name}")
            self.graphs[name] = Csr.from_pairs(ads, anchors, shape[0], weights)
            self.linked[name] = csr_array((weights, (ads, anchors)), shape).toarray() > 0
        for split in SPLITS[1:]:
            pairs = dataset.read(f"filters/{split}")
            self.filters[split] = np.stack([*pairs.itercolumns()], axis=1)
        names = ["ads", *(f"queries/{split}" for split in SPLITS)]
        names += [f"anchors/{name}" for name in self.graphs]
        texts = {name: np.array(dataset.read(name)["text"]) for name in names}
        texts["queries/train"] = texts["queries/train"][self.query_ids]
        self.bag = build_bag(config.encoder.pretrained)
        tokenize = self.bag.text_tokenizer(config.encoder.max_length)
        self.texts = {name: tokenize_texts(tokenize, rows.tolist()) for name, rows in texts.items()}


def softmax_loss(similarity_BL: Tensor, clicked_BL: Tensor, temperature: float) -> Tensor:
    """Rank each clicked ad above all others of the pool, but the query's other clicked ones."""
    logits_BL = similarity_BL / temperature
    others_B1 = logits_BL.masked_fill(clicked_BL, -1e30).logsumexp(dim=1, keepdim=True)
    losses_BL = softplus(others_B1 - logits_BL) * clicked_BL
    return (losses_BL.sum(dim=1) / clicked_BL.sum(dim=1)).mean()


def triplet_loss(
    cosines_NA: Tensor, drawn_N: Tensor, linked_NA: Tensor, loss: LossConfig
) -> Tensor:
    """Lift the anchor that a node drew above the hardest of those it is not linked to, by γ."""
    negatives_NA = cosines_NA.masked_fill(linked_NA, -torch.inf)
    hardest_NK = negatives_NA.topk(min(loss.num_negatives, len(linked_NA.T))).values
    violations_NK = hardest_NK - cosines_NA.gather(1, drawn_N[:, None]) + loss.margin
    counts_N = torch.isfinite(hardest_NK).sum(dim=1).clamp(min=1)
    return (violations_NK.clamp(min=0).sum(dim=1) / counts_N).mean()


@torch.no_grad()
def gains_of(queries_BD: Tensor, ads_BD: Tensor, clicked_BB: Tensor, means_BD: Tensor) -> Tensor:
    """Return how far pulls to means of ads' anchors widen their queries' lead over the nearest."""
    nearest_B, rivals_B = (queries_BD @ ads_BD.T).masked_fill(clicked_BB, -torch.inf).max(dim=0)
    leads_BD = (queries_BD - queries_BD[rivals_B]) * torch.isfinite(nearest_B)[:, None]
    is_linked_B1 = means_BD.any(dim=1, keepdim=True)
    pulls_BD = means_BD - is_linked_B1 * means_BD.sum(dim=0) / is_linked_B1.sum().clamp(min=1)
    along_B1 = (pulls_BD * ads_BD).sum(dim=1, keepdim=True)  # unit vectors cannot move along it
    return (leads_BD * (pulls_BD - along_B1 * ads_BD)).sum(dim=1)


class Training:
    """The model and its training as ``config``, which may differ in its numbers, asks for."""

    def __init__(self, config: RunConfig) -> None:
        self.config, self.data = config, Data(config)
        rates = config.optimizer
        weights = self.data.bag.token_embeddings.detach()
        self.bag = nn.EmbeddingBag.from_pretrained(weights, freeze=False, mode="mean")
        self.head = nn.Linear(weights.shape[1], weights.shape[1])  # makes what asks classifiers
        nn.init.orthogonal_(self.head.weight, generator=torch.manual_seed(config.seed + 1))
        nn.init.zeros_(self.head.bias)
        vectors = normalize(self.head(self.means("ads"))).detach()  # classifiers begin as texts
        self.classifiers = nn.Embedding.from_pretrained(vectors, freeze=False, sparse=True)
        matrices = [self.bag.weight, self.head.weight]
        groups = [{"params": matrices}, {"params": [self.head.bias], "weight_decay": 0.0}]
        self.optimizers = [
            torch.optim.AdamW(groups, rates.lr, eps=1e-6, weight_decay=rates.weight_decay),
            torch.optim.SparseAdam([self.classifiers.weight], config.classifier.lr),  # of the pool
        ]
        self.steps_per_epoch = len(self.data.query_ids) // config.training.global_batch_size
        total = self.steps_per_epoch * config.training.epochs
        rise = round(rates.warmup_fraction * total)
        shares = [min(step / rise, (total - step) / (total - rise)) for step in range(total + 1)]
        self.schedules = [LambdaLR(optimizer, shares.__getitem__) for optimizer in self.optimizers]
        weights = config.regularization.lambda_z
        self.highest = torch.tensor([weights[name] for name in self.data.graphs])
        self.lambdas = 0.1 * self.highest
        self.pulls = torch.zeros(len(self.highest), dtype=torch.bool)
        self.num_looks, self.seen = 0, np.empty(0, dtype=np.int64)
        self.evidence = torch.zeros(2, len(self.highest))

    def means(self, table: str, rows: Int64s | None = None) -> Tensor:
        """Return the means (n, D) of the token embeddings of a table's texts, or of some rows'."""
        texts = self.data.texts[table]
        rows = np.arange(len(texts)) if rows is None else rows
        lengths = texts.lengths(rows)
        starts = torch.from_numpy(lengths.cumsum() - lengths)
        return self.bag(torch.from_numpy(texts.gather(rows)), starts)

    def step(self, step: int) -> list[float]:
        """Draw a batch, encode it, and move the model; returns losses, then weights of graphs."""
        config, data = self.config, self.data
        epoch, place = divmod(step, self.steps_per_epoch)
        size = config.training.global_batch_size
        queries = random_order(len(data.query_ids), size, range(size), config.seed, epoch)[place]
        num_ads = config.base.parts.num_positives
        ads = draw_ads(data.clicks, queries, data.query_ids[queries], (config.seed, epoch), num_ads)
        pool = np.unique(ads[ads >= 0])
        clicked_BL = torch.from_numpy(data.clicked["train"][np.ix_(queries, pool)])
        means_BD = self.means("queries/train", queries)
        queries_BD, pool_LD = normalize(means_BD), normalize(self.means("ads", pool))
        asked_BL = self.head(means_BD) @ self.classifiers(torch.from_numpy(pool)).T
        losses = [
            softmax_loss(queries_BD @ pool_LD.T, clicked_BL, config.loss.temperature),
            softmax_loss(asked_BL, clicked_BL, config.classifier.temperature),
        ]
        first, gains = np.searchsorted(pool, ads[:, 0]), []
        for number, (name, edges) in enumerate(data.graphs.items()):  # nodes of all, clicked or not
            chances = uniforms((config.seed, step, Stream.NODE, number), np.arange(size))
            nodes = edges.filled_rows[(chances * len(edges.filled_rows)).astype(int)]
            chances = uniforms((config.seed, step, Stream.NODE_ANCHOR, number), np.arange(size))
            anchors, drawn = np.unique(edges.draw(nodes, chances), return_inverse=True)
            anchors_AD = normalize(self.means(f"anchors/{name}", anchors))
            cosines_NA = normalize(self.means("ads", nodes)) @ anchors_AD.T
            linked_NA = torch.from_numpy(data.linked[name][np.ix_(nodes, anchors)])
            losses.append(triplet_loss(cosines_NA, torch.from_numpy(drawn), linked_NA, config.loss))
            linked_BA = torch.from_numpy(data.linked[name][np.ix_(ads[:, 0], anchors)]).float()
            pulled_BD = linked_BA @ anchors_AD / linked_BA.sum(dim=1, keepdim=True).clamp(min=1)
            gains.append(gains_of(queries_BD, pool_LD[first], clicked_BL[:, first], pulled_BD))
        lambdas = self.adapted(torch.stack(gains), step, ads[:, 0])
        shares = torch.tensor([1 - config.classifier.share, config.classifier.share])
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        (torch.stack(losses) * torch.cat([shares, lambdas])).sum().backward()
        for moved in (*self.optimizers, *self.schedules):
            moved.step()
        return [*torch.stack(losses).tolist(), *lambdas.tolist()]

    def adapted(self, gains_GB: Tensor, step: int, ads: Int64s) -> Tensor:
        """Return λ of each graph: 0 until an epoch's gains, of each ad once, are no chance."""
        factors = torch.exp(self.config.regularization.adaptive_step * gains_GB.sum(dim=1))
        moved = (self.lambdas * factors).clamp(0.01 * self.highest, self.highest)
        self.lambdas = torch.where(self.pulls, moved, self.lambdas)
        if step % self.steps_per_epoch == 0:
            self.seen = ads[:0]
            self.evidence.zero_()
        new_B = ~np.isin(ads, self.seen)
        new_B[np.setdiff1d(np.arange(len(ads)), np.unique(ads, return_index=True)[1])] = False
        self.seen = np.append(self.seen, ads)
        counted_GB = gains_GB * torch.from_numpy(new_B)
        self.evidence += torch.stack([counted_GB.sum(dim=1), counted_GB.square().sum(dim=1)])
        epoch, place = divmod(step + 1, self.steps_per_epoch)
        if place == 0 or (epoch == 0 and place in 2 ** np.arange(30)):
            self.num_looks += 1
            chance = ERROR * 6 / (np.pi * self.num_looks) ** 2 / len(gains_GB)
            needed_G = (-2 * np.log(chance) * self.evidence[1]).sqrt()
            self.pulls |= self.evidence[0] > needed_G
        return self.lambdas * self.pulls

    @torch.no_grad()
    def evaluate(self, split: str) -> tuple[dict[str, float], NDArray[np.float64]]:
        """Search by two cosines, of encoder and classifiers; also returns each query's recall."""
        data, settings = self.data, self.config.classifier
        queries, ads = self.means(f"queries/{split}"), self.means("ads")
        is_trained = torch.from_numpy(data.clicked["train"].any(axis=0))[:, None]
        by_text = settings.text_scale * normalize(self.head(ads))
        classifiers = torch.where(is_trained, normalize(self.classifiers.weight), by_text)
        asking = settings.weight * normalize(self.head(queries))
        queries_BD = torch.hstack([normalize(queries), asking]).numpy()
        ads_BD = torch.hstack([normalize(ads), classifiers]).numpy()
        filters, clicked = data.filters[split], data.clicked[split]
        nearest = search(queries_BD, ads_BD, 10 + most_filters(filters))
        top_10 = drop_filtered(nearest, filters, 10)[0]
        hits = np.take_along_axis(clicked, top_10, axis=1) & (top_10 >= 0)
        recall = hits.sum(axis=1) / clicked.sum(axis=1)
        return {"P@1": float(hits[:, 0].mean()), "R@10": float(recall.mean())}, recall

    def train(self) -> tuple[list[list[float]], dict[str, dict[str, float]]]:
        """Train to the end; returns all steps' losses, and metrics of the epoch that answers."""
        history, epochs, recalls = [], [], []
        for step in range(self.steps_per_epoch * self.config.training.epochs):
            history.append(self.step(step))
            if (step + 1) % self.steps_per_epoch == 0:
                measured = {split: self.evaluate(split) for split in SPLITS[1:]}
                epochs.append({split: metrics for split, (metrics, _) in measured.items()})
                recalls.append(measured["validation"][1])
                print(np.mean(history[-self.steps_per_epoch :], axis=0).round(4), epochs[-1])
        return history, epochs[answering_epoch(recalls)]


def answering_epoch(recalls: Sequence[NDArray[np.float64]]) -> int:
    """Return the number of the last epoch, or of the best if it is better beyond noise.

    ``recalls`` are of each validation query by epoch.
    """
    last = len(recalls) - 1
    best = max(range(len(recalls)), key=lambda epoch: (recalls[epoch].mean(), epoch))
    gains = recalls[best] - recalls[last]
    noise = 1.96 * gains.std(ddof=1) / np.sqrt(len(gains))
    return best if np.count_nonzero(gains) >= 6 and gains.mean() > noise else last


if __name__ == "__main__":
    print("answers:", Training(overlay(bag_unidec(), IN_BATCH)).train()[1])
