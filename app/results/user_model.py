"""One user's model: it predicts from raw samples, and gives itself away in every form."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from corsage.app.results.header import Header
from corsage.app.results.intervals import with_ends
from corsage.app.results.known_models import check_model, check_rule
from corsage.app.results.model_inputs import (
    Preparation,
    by_feature,
    feature_names,
    in_original_units,
    preparation_of,
    samples,
    unscaled,
)
from corsage.core.arrays import Array, Arrays, Floats
from corsage.core.errors import CheckpointError, DataError, ModelError
from corsage.core.registry import attached
from corsage.networks.batches import Examples
from corsage.networks.build import build_network, measure_model
from corsage.networks.network import NETWORK_LOCK, Network
from corsage.networks.training import to_tensors
from corsage.networks.user_scores import linear_outputs_of_each, outputs_of
from corsage.networks.vector import as_block
from corsage.networks.zoo import ZOO

if TYPE_CHECKING:
    from corsage.app.results.row import Row

MOST_PARAMETERS = 10**9
"""No file's header may ask for a larger model: it would be made before a parameter is read."""
TYPES = ("float32", "float64", "int64")
"""Those of parameters, and of counters."""
Vectors = Callable[[], Array]
"""The vectors that samples are numbers of, if they are."""


class UserModel:
    """A user's own model, as a row of the table was judged by it.

    Parameters
    ----------
    user : whose it is.
    head : what a prediction needs besides the parameters.
    arrays : the parameters by their names.
    vectors : what samples are numbers of, where they are.
    start : of a model for whoever is new, what it is made of; `` of a user's own.
    scales : the user's own shift, scale and label, where each user is scaled by its own rows.
    row : of the run's table, where that is at hand.
    """

    def __init__(
        self,
        user: str,
        head: Header,
        arrays: Arrays,
        vectors: Vectors | None = None,
        start: str = "",
        scales: Mapping[str, list[float]] | None = None,
        row: Row | None = None,
    ) -> None:
        self.user, self.head, self.arrays, self.start = user, head, arrays, start
        self._scales = scales or {}
        self._vectors, self.row = vectors, row

    def __repr__(self) -> str:
        head = self.head
        who = self.start or f"the model of user {self.user}"
        return f"<{head.row} after round {head.round}: {who}, {head.model['model']}>"

    # What it says of samples.

    def predict(self, x: Any, interval: float | None = None) -> NDArray[Any]:
        """Of each sample its class, by name if it has one, or its number in the label's unit.

        With `interval`, such as 0.95, three columns: the number, and the ends of its prediction
        interval, in which so many of new labels lie.
        """
        if interval is not None:
            return with_ends(self, x, interval)
        outputs, criterion = self.outputs(x), self.network.criterion
        if criterion.numbers:
            answers = criterion.response(outputs)[:, 0]
            return np.asarray(self._original(answers.cpu().numpy()))
        one = outputs.shape[1] == 1
        labels = (outputs[:, 0] > 0).long() if one else outputs.argmax(1)
        return self.names[labels.numpy()] if len(self.names) else labels.numpy()

    def predict_proba(self, x: Any) -> Floats:
        """Of each sample how likely each class is (n, classes), in the order of `classes`."""
        name, outputs = self.network.criterion.name, None
        if name == "cross-entropy":
            return np.asarray(torch.softmax(self.outputs(x).double(), 1).numpy())
        if name != "logistic":
            raise ModelError(f"loss={name} says nothing of how likely a class is; use predict.")
        outputs = torch.sigmoid(self.outputs(x)[:, 0].double()).numpy()
        return np.stack([1 - outputs, outputs], 1)

    def outputs(self, x: Any) -> Tensor:
        """The model's outputs, in its own units (n, outputs)."""
        return self.of_tensor(self.inputs(x))

    def of_arrays(self, x: Array) -> Tensor:
        """The same of samples as the federation's data hold them."""
        return self.of_tensor(self.tensor(x))

    def of_tensor(self, inputs: Tensor) -> Tensor:
        """The same of what goes into the model."""
        head = self.head
        if not len(inputs):
            return inputs.new_zeros((0, self.network.criterion.outputs(head.num_classes)))
        if head.linear and len(self.network.blocks) > 2:
            raise ModelError(f"{head.row}: the model is not linear, as its file says: damaged.")
        with NETWORK_LOCK, threads(head.threads):
            if self.rule is not None:
                own: Tensor = attached("combined").outputs_of(self.rule, self.network, inputs)
                return own
            if head.linear:
                theta = torch.from_numpy(self.flat).to(getattr(torch, head.linear))
                outputs = self.network.criterion.outputs(head.num_classes)
                return linear_outputs_of_each(theta[None], inputs, np.array([len(inputs)]), outputs)
            try:
                return outputs_of(self.network, self.flat, inputs)
            except IndexError as error:  # torch's of an embedding
                low, high = int(inputs.min()), int(inputs.max())
                raise DataError(
                    f"{head.row}: the samples' numbers are {low} to {high}: the model's embedding "
                    "has no row for one of them."
                ) from error

    def inputs(self, x: Any) -> Tensor:
        """Raw samples as the model, and `module()`, take them."""
        return self.tensor(samples(x, self.head, self.preparation))

    def tensor(self, x: Array) -> Tensor:
        """The federation's samples as they go into the model."""
        head = self.head
        if head.vectors and x.dtype.kind in "iu":
            if self._vectors is None:
                raise DataError("samples are numbers of vectors, which are not here: give vectors.")
            x = self._vectors()[x]
        kind = getattr(torch, head.inputs)
        labels = np.zeros(len(x), np.int64)
        return to_tensors(x, labels, head.shift, head.scale, "cpu", (kind, kind))[0]

    def examples(self, x: Array, y: Array) -> Examples:
        """Samples of the federation's with their labels, to be judged by."""
        kinds = getattr(torch, self.head.inputs), torch.float64
        _, labels = to_tensors(np.zeros(1), y, 0.0, 1.0, "cpu", kinds)
        return Examples(self.tensor(x), labels, np.array([len(labels)], np.int64))

    # What it is.

    @property
    def classes(self) -> list[Any]:
        """The classes, by their names if they have any; [] of numbers."""
        return self.names.tolist() if len(self.names) else list(range(self.head.num_classes))

    @cached_property
    def names(self) -> NDArray[Any]:
        """The classes' names, if they have any."""
        own = self.preparation.classes if self.preparation else self.head.classes
        return np.array(own, object)

    @cached_property
    def preparation(self) -> Preparation | None:
        """The way from a table's columns to features."""
        agreed, own = preparation_of(self.head), self._scales
        if agreed is None or not own:
            return agreed
        try:
            mean, scale = own["label"]
            plain = {**agreed.json(), "shift": own["shift"], "scale": own["scale"]}
            plain["label"] |= {"mean": mean, "scale": scale}
            return Preparation.read(plain)
        except (KeyError, ValueError, TypeError) as error:
            raise CheckpointError(f"{self.head.row}: a user's scales are damaged.") from error

    @cached_property
    def network(self) -> Network:
        """The network that the parameters belong to; its own are anybody's."""
        head, count = self.head, sum(array.size for array in self.arrays.values())
        check_model(head.keys.model)
        if head.keys.model in ZOO and not self.start:
            size, _ = measure_model(head.keys, head.shape, head.num_classes)
            if size > MOST_PARAMETERS or (self.user and size > count):
                raise ModelError(f"{head.row}: the file has {count:,} of {size:,} parameters.")
        return build_network(head.keys, head.shape, head.num_classes, head.seed, fixed=self.arrays)

    @cached_property
    def rule(self) -> nn.Module | None:
        """The module that a model of several vectors is; None: it is of one."""
        check_rule(self.head.combination)
        with NETWORK_LOCK:
            spec, facts = self.head.combination, (self.network, self.arrays)
            found: nn.Module | None = attached("combined").loaded(spec, *facts) if spec else None
        return found

    @cached_property
    def flat(self) -> Array:
        """The parameters as one vector; ModelError if they are not those of the network."""
        blocks = self.network.blocks
        for b in blocks:
            shape = self.arrays[b.name].shape if b.name in self.arrays else None
            if shape == tuple(b.shape) and self.arrays[b.name].dtype.name not in TYPES:
                raise CheckpointError(
                    f"{self.head.row}: {b.name} is of no type of numbers: damaged."
                )
            if shape != tuple(b.shape):
                raise ModelError(
                    f"model={self.head.model['model']}: {b.name} is {tuple(b.shape)} there, and "
                    f"{shape or 'not'} in the file: it was made for another model."
                )
        parts = [self.arrays[b.name].reshape(-1) for b in blocks]
        flat = np.concatenate(parts) if parts else np.zeros(0, np.float32)
        if not np.isfinite(flat).all():
            raise ModelError(f"{self.head.row}: parameters in the file are not finite: damaged.")
        return flat

    def module(self) -> nn.Module:
        """A torch module of its own with the user's parameters, in evaluation mode.

        It takes samples as `inputs` gives them, of the type of its parameters, and puts out what
        `outputs` does.
        """
        if self.rule is not None:
            return copy.deepcopy(self.rule)
        flat, network = self.flat, self.network
        with NETWORK_LOCK:
            network.set(network.whole, flat)
            network.train(False)
            module = copy.deepcopy(network.module)
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for tensor in tensors.values():  # in place: what has two names stays one
            tensor.data = tensor.detach().clone()
        for b in network.blocks:  # of convex models in double precision
            values = as_block(self.arrays[b.name].reshape(-1), b)
            tensors[b.name].data = torch.from_numpy(np.array(values))
        trained = {b.name for b in network.blocks if b.trained}
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name in trained)
        return module

    def state_dict(self) -> dict[str, Tensor]:
        """The module's state dict."""
        return dict(self.module().state_dict())

    @property
    def coefficients(self) -> dict[str, Any]:
        """Of a linear model each feature's coefficient, and `intercept`; of several classes one
        for each class.
        """
        if self.head.model["model"] != "linear" or self.rule is not None:
            raise ModelError(f"model={self.head.model['model']} has no coefficients.")
        weight, bias = self.linear()
        one = len(weight) == 1
        names = feature_names(self.preparation, weight.shape[1])
        found = {name: float(w[0]) if one else w for name, w in zip(names, weight.T, strict=True)}
        if bias is not None:
            found["intercept"] = float(bias[0]) if one else bias
        return found

    @property
    def labels(self) -> list[str]:
        """Owners of the numbers of `of_all`: a feature, and of several classes one."""
        found = []
        for name, values in self.coefficients.items():
            count = np.size(values)
            found += [name if count == 1 else f"{name} ({self.classes[k]})" for k in range(count)]
        return found

    def of_all(self, every: Callable[[str], Array]) -> Floats:
        """Coefficients of many users of the same row, one row a user, in the order of `labels`.

        `every` gives a parameter of all of them, by its name.
        """
        weight, bias = self.linear(every)
        columns = np.moveaxis(weight, -1, -2)  # by feature and class, as `coefficients` has them
        if bias is not None:
            columns = np.concatenate([columns, bias[..., None, :]], -2)
        return columns.reshape(len(columns), -1)

    def linear(self, every: Callable[[str], Array] | None = None) -> tuple[Array, Array | None]:
        """W (outputs, features) and b (outputs,) in the units of the samples as they were given.

        With `every` those of many users, whose axis is the first.
        """
        get = every or self.arrays.__getitem__
        blocks = [get(b.name) for b in self.network.blocks]
        weight = np.asarray(blocks[0], np.float64)
        bias = np.asarray(blocks[1], np.float64) if len(blocks) > 1 else None
        shift, scale = (by_feature(v, self.head.shape) for v in (self.head.shift, self.head.scale))
        weight, bias = unscaled(weight, bias, shift, scale)
        if self.preparation is None:
            return weight, bias
        return in_original_units(weight, bias, self.preparation)

    def _original(self, values: Array) -> Array:
        wide = np.asarray(values, np.float64)  # in its own unit a number may have more digits
        return values if self.preparation is None else self.preparation.original(wide)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """So many threads of torch: sums are those of whoever computes with as many."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(number, 1))
    try:
        yield
    finally:
        torch.set_num_threads(before)
