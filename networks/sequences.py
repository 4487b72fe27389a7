"""Built-in models of series, sequences and numbered things: cnn1d, lstm, gru, embedding."""

from __future__ import annotations

from torch import Tensor, nn

from corsage.core.configuration.key_groups import ModelKeys
from corsage.core.errors import ModelError
from corsage.networks.zoo import Layers, Shape, hidden_sizes, image, sequential


def cnn1d(shape: Shape, outputs: int, keys: ModelKeys) -> nn.Module:
    """Two convolutions of 5 over time, of 16 channels, for (channels, 1, times); then 64, head."""
    channels, height, times = image(shape, "cnn1d")
    if height != 1 or times < 4:
        raise ModelError(f"model=cnn1d: needs (channels, 1, times), the data have shape {shape}.")
    layers: Layers = {}
    for i, width in enumerate((channels, 16), 1):
        layers[f"conv{i}"] = nn.Conv2d(width, 16, (1, 5), padding=(0, 2))
        layers[f"pool{i}"], layers[f"relu{i}"] = nn.MaxPool2d((1, 2)), nn.ReLU()
    layers |= {"flatten": nn.Flatten(), "fc1": nn.Linear(16 * (times // 4), 64), "relu3": nn.ReLU()}
    layers["head"] = nn.Linear(64, outputs)
    return sequential(layers)


def lstm(shape: Shape, outputs: int, keys: ModelKeys) -> nn.Module:
    """FedRep's network for Sent140: an LSTM of 128 over the word vectors, 10, head.

    Its features are those of the last of the 25 words. (The official code lays the vectors out by
    a `view` that mixes words and numbers, 25 numbers at 300 steps; here a step is a word.)
    """
    if len(shape) != 2:
        raise ModelError(
            f"model=lstm: needs sequences of vectors (words, width), the data have shape {shape}. "
            "Use dataset=sent140, or another model."
        )
    layers: Layers = {"lstm": LastStep(shape[1], 128), "fc": nn.Linear(128, 10)}
    layers |= {"relu": nn.ReLU(), "head": nn.Linear(10, outputs)}
    return sequential(layers)


class LastStep(nn.Module):
    """Recurrent cells over (batch, steps, width), and their output at the last step."""

    def __init__(self, width: int, size: int, kind: type[nn.LSTM | nn.GRU] = nn.LSTM) -> None:
        super().__init__()
        self.cells = kind(width, size, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """The output after the last step (batch, size)."""
        output: Tensor = self.cells(x)[0]
        return output[:, -1]


def gru(shape: Shape, outputs: int, keys: ModelKeys) -> nn.Module:
    """A GRU over sequences of vectors, read out at the last step; `hidden` is its size."""
    if len(shape) != 2:
        raise ModelError(f"model=gru: needs (steps, width), the data have shape {shape}.")
    (size,) = sized(keys, 1, "its size, such as 64")
    layers: Layers = {"gru": LastStep(shape[1], size, nn.GRU), "head": nn.Linear(size, outputs)}
    return sequential(layers)


def embedding(shape: Shape, outputs: int, keys: ModelKeys) -> nn.Module:
    """A vector for each of so many things, whose number is the input; a linear head on it."""
    if shape != (1,):
        raise ModelError(f"model=embedding: needs one number a sample, the data have {shape}.")
    count, width = sized(keys, 2, "how many things and how wide a vector, such as 1303,16")
    return sequential({"vectors": Vectors(count, width), "head": nn.Linear(width, outputs)})


class Vectors(nn.Module):
    """The vectors of (batch, 1) things."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(count, width)
        nn.init.normal_(self.table.weight, std=0.1)  # 1, torch's, drowns a user's own intercept

    def forward(self, x: Tensor) -> Tensor:
        """Their rows (batch, width)."""
        found: Tensor = self.table(x[:, 0].long())
        return found


def sized(keys: ModelKeys, count: int, meaning: str) -> list[int]:
    """So many numbers of `hidden`."""
    sizes = hidden_sizes(keys.hidden)
    if len(sizes) != count:
        raise ModelError(f"hidden={keys.hidden}: of model={keys.model} it is {meaning}.")
    return sizes
