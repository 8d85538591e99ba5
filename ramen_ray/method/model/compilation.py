"""Encoders as ONNX graphs: on CPUs ONNX Runtime is faster than torch."""

import logging
import tempfile
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ramen_ray.method.model.encoder import TransformerEncoder
from ramen_ray.method.model.pretrained import EncoderError

ONNX_FOLDER = "onnx"  # where sentence-transformers looks for graphs
FLOAT32_FILE, INT8_FILE = "model.onnx", "model_qint8.onnx"
INPUTS, OUTPUT = ("input_ids", "attention_mask"), "last_hidden_state"


class _States(nn.Module):
    """A transformer that maps token ids (N, T) and mask (N, T) to states (N, T, D)."""

    def __init__(self, backbone: PreTrainedModel) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        outputs = self.backbone(input_ids=input_ids, attention_mask=attention_mask)
        return outputs.last_hidden_state


def write_onnx(encoder: TransformerEncoder, folder: Path, int8: bool) -> str:
    """Write an encoder's transformer, on the CPU, as an ONNX graph of token ids and mask.

    ``int8`` multiplies matrices of 8-bit integers: weights are quantised here, per output channel,
    activations at run time. Returns the graph's file, relative to the encoder's ``folder``.

    Raises:
        EncoderError: the packages for this are not installed.
    """
    try:
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise EncoderError(f"{error}; compiling needs: pip install -e '.[onnx]'") from None
    (folder / ONNX_FOLDER).mkdir(exist_ok=True)
    name = f"{ONNX_FOLDER}/{INT8_FILE if int8 else FLOAT32_FILE}"
    if not int8:
        _export(encoder, folder / name)
        return name
    with tempfile.TemporaryDirectory() as aside:
        graph = Path(aside) / FLOAT32_FILE
        _export(encoder, graph)
        quantize_dynamic(graph, folder / name, per_channel=True, weight_type=QuantType.QInt8)
    return name


def _export(encoder: TransformerEncoder, file: Path) -> None:
    from torch.export import Dim  # the import takes a second, and only compiling needs it

    token_ids = torch.ones(2, 3, dtype=torch.long)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])  # another tensor than the ids: else one input
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        torch.onnx.export(
            _States(encoder.backbone),
            (token_ids, mask),
            file,
            dynamo=True,
            verbose=False,
            external_data=False,
            input_names=INPUTS,
            output_names=[OUTPUT],
            dynamic_shapes=[{0: Dim.DYNAMIC, 1: Dim.DYNAMIC}] * len(INPUTS),
        )
