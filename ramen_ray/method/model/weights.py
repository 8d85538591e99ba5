"""Weights of pretrained encoders: transformers, token embeddings, projections."""

from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.utils import logging as transformers_logging

from ramen_ray.method.model.heads import Head
from ramen_ray.method.model.pretrained import (
    LOAD_ERRORS,
    EncoderError,
    load_config,
    resolve_pretrained,
)
from ramen_ray.method.model.sentence_folder import TABLES


def load_backbone(pretrained: str, num_layers: int | None = None) -> Any:
    """Load a transformer without the pooler, cut to its first ``num_layers`` if these are given."""
    from transformers import AutoModel  # the import takes seconds, and a driver loads no weights

    config = _cut_config(pretrained, num_layers)
    # transformers' report is silenced: unused layers are expected, and missing weights, which it
    # would initialise at random, are an error below.
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        backbone, report = AutoModel.from_pretrained(
            resolve_pretrained(pretrained),
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            trust_remote_code=False,
            weights_only=True,
        )
    except (*LOAD_ERRORS, RuntimeError, SafetensorError, UnpicklingError) as error:
        raise EncoderError(f"cannot load the weights of {pretrained!r}: {error}") from error
    finally:
        transformers_logging.set_verbosity(verbosity)
    missing = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
    if missing:
        raise EncoderError(f"{pretrained!r} lacks weights: {', '.join(missing[:3])} ...")
    if getattr(backbone, "pooler", None) is not None:
        backbone.pooler = None  # never used here, and DDP refuses parameters without gradients
    return backbone


def _cut_config(pretrained: str, num_layers: int | None) -> PreTrainedConfig:
    config = load_config(pretrained)
    if num_layers is not None:
        if not 1 <= num_layers <= config.num_hidden_layers:
            raise EncoderError(
                f"encoder.num_layers is {num_layers}; {pretrained!r} has 1 to "
                f"{config.num_hidden_layers} layers"
            )
        config.num_hidden_layers = num_layers
    return config


def load_projection(pretrained: str, dense: Path | None) -> Head | None:
    """Load the projection in the folder ``dense`` of an encoder, if there is one."""
    try:
        return None if dense is None else Head.load(dense)
    except (OSError, LookupError, RuntimeError, SafetensorError) as error:
        raise EncoderError(f"cannot load the projection of {pretrained!r}: {error}") from error


def load_table(pretrained: str, file: Path) -> Tensor:
    """Load a bag's token embeddings (vocabulary, D) float32."""
    try:
        content = load_file(file)
        name = next((name for name in TABLES if name in content), TABLES[0])
        table = content[name].float()
        if name == TABLES[1]:  # of a token: the row that it shares with others, times its weight
            table = table[content["mapping"].long()] if "mapping" in content else table
            table = table * content["weights"].float()[:, None] if "weights" in content else table
        return table
    except (OSError, LookupError, SafetensorError) as error:
        raise EncoderError(
            f"cannot load the token embeddings of {pretrained!r}: {error}"
        ) from error
