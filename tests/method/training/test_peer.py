"""Training against sentence-transformers' own trainer."""

from dataclasses import replace

import numpy as np
import pytest
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from short_runs import Run, build_encoder
from support import MAX_LENGTH
from torch.utils.data import SequentialSampler
from written_out import column_of

from datasets import Dataset as Pairs
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.objectives.losses import SoftmaxLoss
from ramen_ray.method.objectives.terms import ramen_objective
from ramen_ray.method.sampling.batches import Sampler
from ramen_ray.method.sampling.training_data import TrainingData

NUM_STEPS = 24
WARMUP_STEPS = 4
BATCH_SIZE = 8
NUM_QUERIES = 32
RATE = 5e-3
DECAY = 0.01
TEMPERATURE = 0.05


class _Recorded(MultipleNegativesRankingLoss):
    """The loss, which keeps its values."""

    def forward(self, sentence_features, labels):
        loss = super().forward(sentence_features, labels)
        self.values = [*getattr(self, "values", []), loss.item()]
        return loss


def test_losses_are_those_of_sentence_transformers_step_by_step(
    prepared, dataset_path, encoder_path, tmp_path
):
    objective = ramen_objective(SoftmaxLoss(TEMPERATURE), {}, {})
    whole = TrainingData.from_prepared(prepared, [])
    each = np.arange(NUM_QUERIES)
    # theirs takes every other ad of a batch for a negative: so each query has an ad of its own
    own_ads = Csr.from_pairs(each, each, NUM_QUERIES)
    data = replace(whole, query_ids=whole.query_ids[:NUM_QUERIES], clicks=own_ads)
    sampler = Sampler(data, BATCH_SIZE, seed=3)
    schedule = WARMUP_STEPS, NUM_STEPS
    run = Run(
        build_encoder("transformer", encoder_path),
        sampler,
        objective,
        (),
        (RATE, DECAY, None),
        schedule,
    )
    batches = [sampler.draw(step, run.state.sources, []) for step in range(NUM_STEPS)]

    dataset = Dataset(dataset_path)
    texts = [column_of(dataset, table) for table in ("queries/train", "ads")]
    rows = [data.query_ids[np.concatenate([batch.queries for batch in batches])]]
    rows.append(np.concatenate([batch.ads[:, 0] for batch in batches]))
    columns = zip(("query", "ad"), texts, rows, strict=True)
    pairs = Pairs.from_dict({name: [of[row] for row in at] for name, of, at in columns})
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = SentenceTransformer(encoder_path, device="cpu", config_kwargs=no_dropout)
    model.max_seq_length = MAX_LENGTH
    loss = _Recorded(model, scale=1 / TEMPERATURE)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path),
        use_cpu=True,
        num_train_epochs=1,
        per_device_train_batch_size=BATCH_SIZE,
        batch_sampler=lambda pairs, batch_size, drop_last, **_: DefaultBatchSampler(
            SequentialSampler(pairs), batch_size, drop_last
        ),
        learning_rate=RATE,
        weight_decay=DECAY,
        warmup_steps=WARMUP_STEPS,
        adam_epsilon=1e-6,
        max_grad_norm=0.0,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    SentenceTransformerTrainer(model, arguments, pairs, loss=loss).train()

    ours = np.ravel(run.train(NUM_STEPS))
    assert ours == pytest.approx(loss.values, rel=1e-4)
    assert np.ptp(ours) > 0.5, "it learns"
