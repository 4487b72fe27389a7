"""`corsage export`: a user's model for other programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from corsage.app.inference.source import models_in, only, read
from corsage.app.output.usage import command
from corsage.core.errors import ConfigError, CorsageError
from corsage.core.files import guarded, write_atomically
from corsage.core.keys import nearest

if TYPE_CHECKING:
    from corsage.app.results.user_model import UserModel

USAGE = """\
usage: corsage export PLACE [strategy=ROW] [user=NAME] --out FILE [--format FORMAT]

  PLACE            a run folder, or a device's state-dir
  strategy=ROW     a row of the run's table, such as fedrep or fedavg+ft, if there are several
  user=NAME        whose model, if there are several; new: what a new user begins with
  models=NAME      code of a model's own that may be run though it was not trained here before
  --out FILE       where to
  --format FORMAT  safetensors: parameters by name, and what they are of in the metadata
                   torch: a state dict, for torch.load(FILE, weights_only=True)
                   onnx: a graph that takes samples as they are before they are shifted and scaled
                   (pip install 'corsage[onnx]')
                   Without it, what the end of FILE's name says.
"""
FORMATS = {".safetensors": "safetensors", ".pt": "torch", ".pth": "torch", ".onnx": "onnx"}
NEW_USER = "new"


@command(USAGE, CorsageError, needs_words=True)
def run(words: list[str]) -> None:
    """Do what the words say; 0, or 2 with one line on what is wrong."""
    found = read(words, ("strategy", "user", "models"), ("--out", "--format"), ())
    if len(found.files) != 1 or "--out" not in found.options:
        raise ConfigError("export: name a run folder or state-dir, and --out FILE.")
    target = Path(found.options["--out"]).expanduser()
    kind = format_of(found.options.get("--format", ""), target)
    models = models_in(found.files[0], found.keys.get("strategy", ""))
    name = found.keys.get("user") or only(dict.fromkeys(models.users), "user")
    new = name == NEW_USER and NEW_USER not in models.users
    model = models.new_user() if new else models.user(name)
    guarded(write_atomically, target, content(model, kind))
    print(f"{target}: {model!r}", file=sys.stderr)


def format_of(word: str, target: Path) -> str:
    """The format that is asked for, or that the file's name says."""
    kinds = sorted(set(FORMATS.values()))
    kind = word or FORMATS.get(target.suffix, "")
    if kind not in kinds:
        if not word:
            raise ConfigError(
                f"{target.name}: its ending names no format; there are {', '.join(FORMATS)}, "
                f"or give --format {'|'.join(kinds)}."
            )
        raise ConfigError(f"--format {kind}: is none.{nearest(kind, kinds)}")
    return kind


def content(model: UserModel, kind: str) -> bytes:
    """A model as a file of some format."""
    if kind == "onnx":
        from corsage.app.inference.onnx_file import onnx_of

        return onnx_of(model)
    if kind == "torch":
        import io

        import torch

        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        return file.getvalue()
    from safetensors.torch import save

    state = {name: tensor.contiguous().clone() for name, tensor in model.state_dict().items()}
    return bytes(save(state, model.head.metadata()))
