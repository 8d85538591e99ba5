"""Training and shortlists on a GPU: precision, waits, memory and NCCL, on the dictionary."""

import gc
import warnings
from collections import Counter
from functools import partial

import numpy as np
import pytest
import short_runs
import torch
from support import ROOT, prepare_in_process
from torch import distributed
from written_out import column_of

from ramen_ray.data.arrays import map_array
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.metrics.ground_truth import Propensity, evaluate
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.encoder import build_transformer
from ramen_ray.method.model.heads import Classifiers, Head
from ramen_ray.method.model.occurring_tokens import keep_tokens
from ramen_ray.method.model.texts import packed
from ramen_ray.method.objectives.adaptation import LINKED, AdaptiveWeights
from ramen_ray.method.objectives.losses import SoftmaxLoss, TripletLoss
from ramen_ray.method.objectives.terms import (
    bce_term,
    classifier_reverse_term,
    classifier_term,
    ramen_objective,
    reverse_term,
    task_term,
)
from ramen_ray.method.retrieval.search import share_found
from ramen_ray.method.retrieval.shortlists import write_shortlists
from ramen_ray.method.sampling.batches import Sampler
from ramen_ray.method.sampling.curriculum import ClusterSchedule, Curriculum
from ramen_ray.method.sampling.training_data import TrainingData
from ramen_ray.method.training.classifier_training import ClassifierPart, ClassifierTraining
from ramen_ray.method.training.state import build_schedule
from ramen_ray.method.training.step import step_inputs, train_steps

pytestmark = pytest.mark.gpu

GPU, CPU = "cuda:0", "cpu"
WEIGHTS = {"links": 0.1, "categories": 0.1}
SOFTMAX = task_term(SoftmaxLoss(0.05))  # a triplet loss learns nothing from random weights at first
OBJECTIVE = ramen_objective(TripletLoss(0.3, 10), WEIGHTS, WEIGHTS, task=[SOFTMAX])
OF_CLASSIFIERS = [classifier_term, classifier_reverse_term]
TASK = [SOFTMAX, reverse_term(SoftmaxLoss(0.05), 0.5), bce_term(1.0, 0.5)]
TASK += [build(SoftmaxLoss(1.0), 0.5) for build in OF_CLASSIFIERS]
WITH_ALL = ramen_objective(TripletLoss(0.3, 10), WEIGHTS, WEIGHTS, task=TASK)
BATCH_SIZE = 256
NUM_WORDS = 8000
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="session")
def word_encoder(tmp_path_factory):
    """A random two-layer BERT over foldoc's words, as transformers saves it."""
    from transformers import BertConfig, BertModel, BertTokenizer

    dataset = Dataset(ROOT / "datasets" / "foldoc")
    words = Counter()
    for table in ("queries/train", "ads", "anchors/links", "anchors/categories"):
        for text in column_of(dataset, table):
            words.update(text.lower().split())
    vocabulary = [*SPECIAL_TOKENS, *(word for word, _ in words.most_common(NUM_WORDS))]
    path = tmp_path_factory.mktemp("encoders") / "words"
    numbers = {token: number for number, token in enumerate(dict.fromkeys(vocabulary))}
    BertTokenizer(vocab=numbers).save_pretrained(path)
    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=len(numbers),
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=64,
        initializer_range=0.05,
    )
    model = BertModel(config)
    # The words outweigh all else: so texts with common words are alike before any training.
    torch.nn.init.normal_(model.embeddings.word_embeddings.weight)
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def foldoc(word_encoder, tmp_path_factory):
    """The dictionary, prepared for this encoder."""
    folder = tmp_path_factory.mktemp("prepared") / "foldoc"
    dataset = Dataset(ROOT / "datasets" / "foldoc")
    return prepare_in_process(dataset, folder, str(word_encoder), 16, add_special_tokens=True)


class Run(short_runs.Run):
    """A run on one device; all of them start from the same weights.

    With ``has_all`` it has what a run can have besides: classifiers, losses from ads to queries,
    adaptive λ, and a curriculum.
    """

    def __init__(self, data, encoder, device, total_steps, has_all=False):
        made = build_transformer(str(encoder)).to(device)
        keep_tokens(made, data.occurring_tokens)
        training_data = TrainingData.from_prepared(data, OBJECTIVE.regularizers)
        sampler = Sampler(training_data, BATCH_SIZE, seed=3)
        objective = WITH_ALL if has_all else OBJECTIVE
        schedule = total_steps // 10, total_steps
        super().__init__(made, sampler, objective, (), (3e-4, 0.01, 5e-3), schedule)
        self.data = data
        if has_all:
            self.state.parts = self._parts(total_steps)
        self.state.prepare_next_steps()

    def _parts(self, total_steps):
        model = self.model
        ads = np.arange(len(self.data.ads))
        model.classifier_head = Head.orthogonal(model.encoder.width, 64, False, 1).to(model.device)
        vectors = torch.from_numpy(model.classifier_vectors(self.data.ads, ads)).to(model.device)
        classifiers = Classifiers(vectors, 0, np.ones(len(ads), dtype=bool))
        falling = partial(build_schedule, warmup_steps=0, total_steps=total_steps)
        clusters = ClusterSchedule(1, 1, BATCH_SIZE, (), num_epochs=2)
        return [
            ClassifierPart(ClassifierTraining(classifiers, 3e-2, falling)),
            AdaptiveWeights(self.objective, 0.02, self.sampler.steps_per_epoch, model.device),
            Curriculum(clusters, self.sampler, model.encoder.dim, model.device),
        ]

    def inputs(self, steps):
        """Make what some steps compute on."""
        state = self.state
        device = self.model.device
        return step_inputs(self.sampler, state.sources, self.objective, steps, device, state.parts)

    def train(self, stop, **settings):
        """Train up to a step; returns the losses (steps, terms)."""
        return np.array(super().train(stop, **settings))

    def metrics(self, use_bf16=False):
        """Evaluate on the validation split."""
        return evaluate(self.model, self.data, "validation", Propensity(), use_bf16)[0]


@pytest.fixture
def exact_products():
    """Multiply float32 matrices without TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def test_a_gpu_trains_as_a_cpu_does(foldoc, word_encoder, exact_products):
    by_gpu, by_cpu = (Run(foldoc, word_encoder, device, 40) for device in (GPU, CPU))
    np.testing.assert_allclose(by_gpu.train(5), by_cpu.train(5), rtol=1e-3, atol=1e-5)


def test_bf16_trains_as_well_as_float32(foldoc, word_encoder):
    steps = 120
    half, full = (Run(foldoc, word_encoder, GPU, steps) for _ in range(2))
    untrained = full.metrics()
    losses, expected = half.train(steps, use_bf16=True), full.train(steps)
    np.testing.assert_allclose(losses[:5], expected[:5], rtol=0.01)
    np.testing.assert_allclose(losses[-20:].mean(0), expected[-20:].mean(0), rtol=0.05)
    found, wanted = half.metrics(use_bf16=True), full.metrics()
    assert wanted["R@10"] > untrained["R@10"]
    for name in ("P@1", "R@10", "R@100"):
        assert found[name] == pytest.approx(wanted[name], abs=0.015), name


def test_inputs_are_in_page_locked_memory(foldoc, word_encoder):
    run = Run(foldoc, word_encoder, GPU, 10)
    for inputs in run.inputs(range(4)):
        assert all(made.is_pinned() for made in _tensors(inputs))


def _tensors(inputs):
    """Return all that is copied to the GPU besides tokens."""
    tensors = [inputs.queries]
    for one in (inputs.task, *inputs.regularizers.values()):
        tensors += [one.rows, one.candidates, one.drawn, one.positives]
    for linked in inputs.added.get(LINKED, {}).values():
        tensors += linked
    return tensors


@pytest.mark.parametrize("has_all", [False, True])
def test_no_step_waits_for_the_gpu(foldoc, word_encoder, has_all):
    run = Run(foldoc, word_encoder, GPU, 40, has_all)
    run.train(6, use_bf16=True)
    training = train_steps(run.state, run.sampler, run.objective, 14, use_bf16=True)
    next(training)  # the weights of the terms are copied before the first step
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            list(training)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    said = [str(one.message) for one in waits if "called a synchronizing" in str(one.message)]
    assert not said


def test_memory_of_a_step_is_that_of_weights_moments_and_states(foldoc, word_encoder):
    run = Run(foldoc, word_encoder, GPU, 40)
    run.train(2, use_bf16=True)
    steps = range(2, 8)
    inputs = run.inputs(steps)
    padded, texts, masks = zip(
        *(
            (
                sum(pack.token_ids.size for pack in packed(one.tokens)),
                len(one.texts.rows),
                sum(
                    len(compared.rows) * len(compared.candidates)
                    for compared in (one.task, *one.regularizers.values())
                ),
            )
            for one in inputs
        ),
        strict=True,
    )
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    run.train(steps.stop, use_bf16=True)
    peak = torch.cuda.max_memory_allocated()
    assert peak <= _bound(run.model, max(padded), max(texts), max(masks))


def _bound(model, tokens, texts, similarities):
    """Return the bytes that a step needs, with a quarter to spare.

    Weights, gradients and two moments in float32, and the weights in bfloat16; what a layer keeps
    for its gradient (34 bytes per token and unit in 16 bits, section 4.1 of Korthikanti et al.,
    2022; here twice that, since norms and residuals stay in float32); embeddings of tokens and
    texts; and five matrices of similarities.
    """
    weights = sum(parameter.nelement() for parameter in model.parameters())
    config = model.encoder.backbone.config
    states = 2 * 34 * config.num_hidden_layers * config.hidden_size * tokens
    embeddings = 4 * 4 * config.hidden_size * (tokens + texts)
    return 1.25 * (18 * weights + states + embeddings + 5 * 4 * similarities) + (64 << 20)


def test_one_worker_on_nccl_gives_the_same_losses(foldoc, word_encoder, tmp_path, exact_products):
    expected = Run(foldoc, word_encoder, GPU, 40).train(5)
    distributed.init_process_group(
        "nccl", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    try:
        run = Run(foldoc, word_encoder, GPU, 40)
        found = run.train(5)
        del run
        gc.collect()  # a DDP model that outlives the process group can deadlock when it is freed
    finally:
        distributed.destroy_process_group()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


def test_shortlists_are_those_of_a_cpu(foldoc, word_encoder, tmp_path):
    made = []
    for device in (GPU, CPU):
        model = DualEncoder(build_transformer(str(word_encoder))).to(device)
        file = tmp_path / f"{device[:3]}.npy"
        write_shortlists(model, foldoc, 50, file)
        made.append(map_array(file))
    assert share_found(*made) > 0.99  # nearly equal scores may change places, at the end too
