"""A user's model as an ONNX graph, with as much of the samples' preparation as is arithmetic."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from corsage.core.arrays import along_channels
from corsage.core.errors import ConfigError, ModelError
from corsage.networks.criterion import output_of

if TYPE_CHECKING:
    from corsage.app.results.user_model import UserModel

EXTRA = "onnx: needs an extra: pip install 'corsage[onnx]'."


class Scaled(nn.Module):
    """A module on samples that are not shifted and scaled yet; whole numbers are to be neither.

    Parameters
    ----------
    module : takes them shifted and scaled.
    shift, scale : one number, or one for each feature.
    """

    def __init__(self, module: nn.Module, shift: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.module = module
        self.shift, self.scale = nn.Buffer(shift), nn.Buffer(scale)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs (batch, outputs)."""
        own = (x - self.shift) * self.scale if x.is_floating_point() else x
        return output_of(self.module(own))


def onnx_of(model: UserModel) -> bytes:
    """The graph; `samples` go in, `outputs` come out."""
    try:
        import onnx
    except ImportError as error:
        raise ConfigError(EXTRA) from error
    head, prepared = model.head, model.preparation
    shift, scale = (
        np.atleast_1d(along_channels(own)) if prepared is None else np.array(agreed)
        for own, agreed in (
            (head.shift, prepared and prepared.shift),
            (head.scale, prepared and prepared.scale),
        )
    )
    module = model.module()
    kind = next((p.dtype for p in module.parameters()), torch.float32)
    whole = Scaled(module, torch.tensor(shift, dtype=kind), torch.tensor(scale, dtype=kind)).eval()
    example = torch.zeros((2, *head.shape), dtype=torch.int64 if head.inputs == "int64" else kind)
    try:
        with warnings.catch_warnings(), TemporaryDirectory() as folder:
            warnings.simplefilter("ignore")
            path = Path(folder) / "model.onnx"
            torch.onnx.export(
                whole,
                (example,),
                path,
                input_names=["samples"],
                output_names=["outputs"],
                dynamic_axes={"samples": {0: "n"}, "outputs": {0: "n"}},
                dynamo=False,
            )
            graph = onnx.load(str(path))
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"model={head.model['model']}: has no ONNX form: {first}") from error
    facts = {"row": head.row, "user": model.user, "round": head.round, "classes": model.classes}
    if prepared is not None:
        facts |= {"features": list(prepared.features), "label": prepared.json()["label"]}
    entry = graph.metadata_props.add()
    entry.key, entry.value = "corsage", json.dumps(facts)
    return bytes(graph.SerializeToString())
