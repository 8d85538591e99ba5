"""The method on one page, without Ray and MLflow: what this command computes, to rounding.

    python jobs/train.py bag-unidec --base.order random --base.hard-negatives none
    python examples/plain.py

A bag of token embeddings and a vector for each ad, its classifier, learn to find ads (UniDEC), and
graphs pull ads to their anchors as far as that helps (RAMEN). Draws are those of the job.
Shapes: B queries of a batch, L ads of its pool, N nodes and A anchors of a graph, D width.
"""

import numpy as np
import torch
from torch import Tensor, nn, optim
from torch.nn.functional import normalize, softplus

from ramen_ray.config import LossConfig, RunConfig, overlay
from ramen_ray.data.arrays import Float64s, Int64s, mix, uniforms
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.metrics.comparison import Evidence
from ramen_ray.method.model.dual_encoder import tokenize_texts
from ramen_ray.method.model.encoder import build_bag
from ramen_ray.method.model.heads import Head
from ramen_ray.method.retrieval.search import drop_filtered, most_filters, search
from ramen_ray.method.sampling.batches import Stream, draw_ads, random_order
from ramen_ray.presets import bag_unidec

SPLITS = ("train", "validation", "test")
ERROR = 0.02  # probability that any useless graph ever pulls
IN_BATCH = {"base.order": "random", "base.hard_negatives": "none"}


def softmax_loss(similarity_BL: Tensor, clicked_BL: Tensor, temperature: float) -> Tensor:
    """Rank each clicked ad above all others of the pool, but the query's other clicked ones."""
    logits_BL = similarity_BL / temperature
    others_B1 = logits_BL.masked_fill(clicked_BL, -1e30).logsumexp(dim=1, keepdim=True)
    losses_BL = softplus(others_B1 - logits_BL) * clicked_BL
    return (losses_BL.sum(dim=1) / clicked_BL.sum(dim=1)).mean()


def triplet(cosines_NA: Tensor, drawn_N: Tensor, linked_NA: Tensor, loss: LossConfig) -> Tensor:
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
    """Small data, of which all train queries have clicks, and what learns from them."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        dataset = Dataset(config.dataset)
        self.clicked = {split: dataset.clicks(split).toarray() > 0 for split in SPLITS}
        self.query_ids = np.argsort(mix(np.arange(len(self.clicked["train"]))))  # a fixed shuffle
        queries, ads = self.clicked["train"][self.query_ids].nonzero()
        self.clicks = Csr.from_pairs(queries, ads, len(self.query_ids))
        self.steps_per_epoch = len(self.query_ids) // config.training.global_batch_size
        self.graphs, self.linked = {}, {}
        for name in config.regularization.lambda_z:
            ads, anchors, weights = map(np.asarray, dataset.read(f"edges/{name}/ad").columns)
            shape = dataset.num_rows("ads"), dataset.num_rows(f"anchors/{name}")
            self.graphs[name] = Csr.from_pairs(ads, anchors, shape[0], weights)
            self.linked[name] = np.zeros(shape, dtype=bool)
            self.linked[name][ads, anchors] = True
        tables = ["ads", *map("queries/{}".format, SPLITS), *map("anchors/{}".format, self.graphs)]
        texts = {table: dataset.read(table)["text"].to_pylist() for table in tables}
        self.bag = build_bag(config.encoder.pretrained)  # an nn.EmbeddingBag of means
        cut = self.bag.text_tokenizer(config.encoder.max_length)
        self.texts = {table: tokenize_texts(cut, rows) for table, rows in texts.items()}
        self.head = Head.orthogonal(self.bag.width, self.bag.width, False, config.seed + 1)
        vectors = normalize(self.head(self.means("ads"))).detach()  # classifiers begin as texts
        self.classifiers = nn.Embedding.from_pretrained(vectors, freeze=False, sparse=True)
        self.highest = torch.tensor([*config.regularization.lambda_z.values()])
        self.lambdas = 0.1 * self.highest
        self.pulls = torch.zeros_like(self.highest, dtype=torch.bool)
        self.num_looks = 0

    def means(self, table: str, rows: Int64s | None = None) -> Tensor:
        """Return the means (n, D) of the token embeddings of a table's texts, or of some rows'."""
        rows = np.arange(len(self.texts[table])) if rows is None else rows
        lengths = self.texts[table].lengths(rows)
        starts = torch.from_numpy(lengths.cumsum() - lengths)
        return self.bag.embedding(torch.from_numpy(self.texts[table].gather(rows)), starts)

    def step(self, step: int) -> tuple[Tensor, Tensor]:
        """Draw a batch and encode it; returns its losses, and weights of the graphs' among them."""
        config = self.config
        epoch, place = divmod(step, self.steps_per_epoch)
        size = config.training.global_batch_size
        queries = random_order(len(self.query_ids), size, range(size), config.seed, epoch)[place]
        num_ads = config.base.parts.num_positives
        ads = draw_ads(self.clicks, queries, self.query_ids[queries], (config.seed, epoch), num_ads)
        pool = np.unique(ads[ads >= 0])
        clicked_BL = torch.from_numpy(self.clicked["train"][np.ix_(self.query_ids[queries], pool)])
        means_BD = self.means("queries/train", self.query_ids[queries])
        queries_BD, pool_LD = normalize(means_BD), normalize(self.means("ads", pool))
        asked_BL = self.head(means_BD) @ self.classifiers(torch.from_numpy(pool)).T
        losses = [softmax_loss(queries_BD @ pool_LD.T, clicked_BL, config.loss.temperature)]
        losses.append(softmax_loss(asked_BL, clicked_BL, config.classifier.temperature))
        first = np.searchsorted(pool, ads[:, 0])
        gains = []
        for number, (name, edges) in enumerate(self.graphs.items()):  # nodes of all, clicked or not
            chances = uniforms((config.seed, step, Stream.NODE, number), np.arange(size))
            nodes = edges.filled_rows[(chances * len(edges.filled_rows)).astype(int)]
            chances = uniforms((config.seed, step, Stream.NODE_ANCHOR, number), np.arange(size))
            anchors, drawn = np.unique(edges.draw(nodes, chances), return_inverse=True)
            anchors_AD = normalize(self.means(f"anchors/{name}", anchors))
            cosines_NA = normalize(self.means("ads", nodes)) @ anchors_AD.T
            linked_NA = torch.from_numpy(self.linked[name][np.ix_(nodes, anchors)])
            losses.append(triplet(cosines_NA, torch.from_numpy(drawn), linked_NA, config.loss))
            linked_BA = torch.from_numpy(self.linked[name][np.ix_(ads[:, 0], anchors)]).float()
            pulled_BD = linked_BA @ anchors_AD / linked_BA.sum(dim=1, keepdim=True).clamp(min=1)
            gains.append(gains_of(queries_BD, pool_LD[first], clicked_BL[:, first], pulled_BD))
        return torch.stack(losses), self.adapted(torch.stack(gains), step, ads[:, 0])

    def adapted(self, gains_GB: Tensor, step: int, ads: Int64s) -> Tensor:
        """Return λ of each graph: 0 until an epoch's gains, of each ad once, are no chance."""
        factors = torch.exp(self.config.regularization.adaptive_step * gains_GB.sum(dim=1))
        moved = (self.lambdas * factors).clamp(0.01 * self.highest, self.highest)
        self.lambdas = torch.where(self.pulls, moved, self.lambdas)
        if step % self.steps_per_epoch == 0:
            self.seen = np.zeros(len(self.texts["ads"]), dtype=bool)
            self.evidence = torch.zeros(2, len(gains_GB))
        new, places = np.unique(ads, return_index=True)
        counted = gains_GB[:, places[~self.seen[new]]]
        self.seen[new] = True
        self.evidence += torch.stack([counted.sum(dim=1), counted.square().sum(dim=1)])
        epoch, place = divmod(step + 1, self.steps_per_epoch)
        if place == 0 or (epoch == 0 and place in 2 ** np.arange(30)):
            self.num_looks += 1
            chance = ERROR * 6 / (np.pi * self.num_looks) ** 2 / len(gains_GB)
            self.pulls |= self.evidence[0] > (-2 * np.log(chance) * self.evidence[1]).sqrt()
        return self.lambdas * self.pulls

    @torch.no_grad()
    def evaluate(self, split: str) -> dict[str, Float64s]:
        """Search by two cosines, of encoder and classifiers; returns the queries' metrics."""
        settings = self.config.classifier
        ads = self.means("ads")
        is_trained = torch.from_numpy(self.clicked["train"].any(axis=0))[:, None]
        by_text = settings.text_scale * normalize(self.head(ads))
        classifiers = torch.where(is_trained, normalize(self.classifiers.weight), by_text)
        ads_LD = torch.hstack([normalize(ads), classifiers])
        asked = self.means(f"queries/{split}")
        queries_QD = torch.hstack([normalize(asked), settings.weight * normalize(self.head(asked))])
        filters = np.stack(Dataset(self.config.dataset).read(f"filters/{split}").columns, axis=1)
        nearest = search(queries_QD.numpy(), ads_LD.numpy(), 10 + most_filters(filters))
        top_10 = drop_filtered(nearest, filters, 10)[0]
        hits = np.take_along_axis(self.clicked[split], top_10, axis=1) & (top_10 >= 0)
        return {"P@1": hits[:, 0], "R@10": hits.sum(axis=1) / self.clicked[split].sum(axis=1)}

    def train(self) -> tuple[list[list[float]], dict[str, dict[str, Float64s]]]:
        """Train; returns steps' losses and λ, and metrics of the last epoch, or a better one."""
        rates = self.config.optimizer
        head = self.config.classifier
        matrices = [self.bag.embedding.weight, self.head.linear.weight]
        groups = [{"params": matrices}, {"params": [self.head.linear.bias], "weight_decay": 0.0}]
        dense = optim.AdamW(groups, rates.lr, eps=1e-6, weight_decay=rates.weight_decay)
        sparse = optim.SparseAdam([self.classifiers.weight], head.lr)
        total = self.steps_per_epoch * self.config.training.epochs
        rise = round(rates.warmup_fraction * total)
        shares = [min(step / rise, (total - step) / (total - rise)) for step in range(total + 1)]
        moves = [optim.lr_scheduler.LambdaLR(adam, shares.__getitem__) for adam in (dense, sparse)]
        weights = torch.tensor([1 - head.share, head.share])  # of encoder and classifiers
        history, epochs = [], []
        for step in range(total):
            losses, lambdas = self.step(step)
            (losses * torch.cat([weights, lambdas])).sum().backward()
            for move in moves:
                move.optimizer.step()
                move.step()
                move.optimizer.zero_grad()
            history.append([*losses.tolist(), *lambdas.tolist()])
            if (step + 1) % self.steps_per_epoch == 0:
                epochs.append({split: self.evaluate(split) for split in SPLITS[1:]})
                print("losses and λ:", np.mean(history[-self.steps_per_epoch :], axis=0).round(4))
        recalls = [epoch["validation"]["R@10"] for epoch in epochs]
        best = max(range(len(epochs)), key=lambda epoch: (recalls[epoch].mean(), epoch))
        every = np.ones_like(recalls[best])
        gained = Evidence.measured((recalls[best], every), (recalls[-1], every), time=1)
        return history, epochs[best if gained.value > gained.noise else -1]


if __name__ == "__main__":
    for split, metrics in Training(overlay(bag_unidec(), IN_BATCH)).train()[1].items():
        print(split, {name: f"{values.mean():.4f}" for name, values in metrics.items()})
