"""Models of more than one vector: several of a user's, and arrays beside them, as one module.

A rule is a torch module that makes one model of them. It is what users are scored by, and what is
loaded and exported: a prediction cannot differ from the table.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from corsage.clients.parts.contract import Models
from corsage.core.arrays import Array, Arrays, Ints
from corsage.core.errors import ModelError
from corsage.networks.batches import Examples
from corsage.networks.criterion import output_of
from corsage.networks.network import Network
from corsage.networks.user_scores import chunks

Change = Callable[[Tensor], Tensor]
OF_PROBABILITIES, OF_OUTPUTS = "probabilities", "outputs"


class Rule(nn.Module):
    """The base of rules: `forward` makes outputs (batch, outputs) of what its models say.

    Arrays that a user has beside its models are buffers of their names (`self.weights`); settings,
    which all users share, are the keywords of `__init__` after `network` and `count`.

    Parameters
    ----------
    network : what each of the models is.
    count : how many there are.
    """

    def __init__(self, network: Network, count: int) -> None:
        super().__init__()
        halves = (network.split.front, network.split.back) if network.split else ()
        self._why = "" if network.split_exact else network.why
        named = network.module.named_modules()  # behind a frozen front the head has another name
        self._head = next((name for name, m in named if m is network.head_module), "")
        self.models, self._halves = nn.ModuleList(), []
        self._places: list[list[tuple[slice, Tensor]]] = []
        for _ in range(count):
            memo: dict[int, Any] = {}
            module, own = copy.deepcopy((network.module, halves), memo)
            for tensor in (*module.parameters(), *module.buffers()):
                tensor.data = tensor.detach().clone()  # in place: what has two names stays one
            self.models.append(module.requires_grad_(False).eval())
            self._halves.append([half.eval() for half in own])
            tensors = zip(network.blocks, network.vector.tensors(network.whole), strict=True)
            self._places.append([(b.where, memo[id(t)]) for b, t in tensors if id(t) in memo])

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of one user's model."""
        raise NotImplementedError

    def outputs(self, k: int, x: Tensor) -> Tensor:
        """The outputs of model k."""
        return output_of(self.models[k](x))

    def both(self, k: int, x: Tensor, change: Change | None = None) -> tuple[Tensor, Tensor]:
        """The features that come to the head of model k, and the outputs that it makes of them.

        It makes them of what `change` makes of the features, if that is given.
        """
        if self._why:
            raise ModelError(f"a model of features needs a body and a head: {self._why}")
        if self._halves[k]:
            front, back = self._halves[k]
            features: Tensor = front(x)
            return features.flatten(1), output_of(back(change(features) if change else features))
        seen: list[Tensor] = []

        def look(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor] | None:
            seen.append(given[0])
            return (change(given[0]),) if change else None

        head = self.models[k].get_submodule(self._head)
        with head.register_forward_pre_hook(look):
            outputs = self.outputs(k, x)
        return seen[0].flatten(1), outputs

    @torch.no_grad()
    def load(self, vectors: Array) -> None:
        """Put the vectors (K, P) into the models."""
        for places, flat in zip(self._places, vectors, strict=True):
            for where, tensor in places:
                values = torch.from_numpy(np.array(flat[where])).view(tensor.shape)
                tensor.copy_(values if tensor.is_floating_point() else values.round())

    def put(self, arrays: Arrays) -> None:
        """Take what a user has beside its models."""
        like = next(self.parameters(), torch.empty(0))
        for name, array in arrays.items():
            self.register_buffer(name, torch.from_numpy(np.array(array)).to(like.device))


class Mixture(Rule):
    """The weighted sum of what several models say: of probabilities of classes, or of outputs.

    A user's `weights` are one number a model (as FedEM's, FedRoD's sum of two heads has ones).
    """

    weights: Tensor

    def __init__(self, network: Network, count: int, of: str = OF_PROBABILITIES) -> None:
        super().__init__(network, count)
        self.of = of
        if of == OF_PROBABILITIES:
            refuse_no_probabilities(network, "a mixture")

    def forward(self, x: Tensor) -> Tensor:
        """sum_k w_k f_k(x), or the logits of sum_k w_k p_k(x)."""
        every = [self.outputs(k, x) for k in range(len(self.models))]
        if self.of == OF_OUTPUTS:
            return torch.stack([w * one for w, one in zip(self.weights, every, strict=True)]).sum(0)
        parts = [w * probabilities(one) for w, one in zip(self.weights, every, strict=True)]
        return logits(torch.stack(parts).sum(0), every[0].shape[1])


def refuse_no_probabilities(network: Network, what: str) -> None:
    """ModelError if outputs say nothing of how likely a class is."""
    if network.criterion.name not in ("cross-entropy", "logistic"):
        raise ModelError(
            f"{what} of probabilities: loss={network.criterion.name} has none; take "
            "loss=cross-entropy."
        )


def probabilities(outputs: Tensor) -> Tensor:
    """The probabilities of the classes, of which one output is the second's."""
    if outputs.shape[1] > 1:
        return outputs.softmax(1)
    return torch.cat([torch.sigmoid(-outputs), torch.sigmoid(outputs)], 1)


def logits(p: Tensor, outputs: int) -> Tensor:
    """Outputs that have these probabilities; none is less than what can be told from 0."""
    log_p = p.clamp_min(torch.finfo(p.dtype).tiny).log()
    return log_p if outputs > 1 else log_p[:, 1:] - log_p[:, :1]


@dataclass(frozen=True)
class Combined(Models):
    """The users' models, where each is more than one vector: `whole` is (K, P), or (users, K, P).

    Parameters
    ----------
    rule : makes one model of a user's K vectors and of what it has beside them.
    own : arrays with one row a user.
    samples, sizes : arrays with one row a sample, one user after the other, and how many each has.
    settings : numbers and words for the rule, the same for all users.
    """

    rule: type[Rule] = Mixture
    own: Arrays = field(default_factory=dict)
    samples: Arrays = field(default_factory=dict)
    sizes: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def spec(self) -> Mapping[str, Any]:  # type: ignore[override]
        """The rule and its settings, as a file has them."""
        name = f"{self.rule.__module__}:{self.rule.__qualname__}"
        return {"rule": name, "models": self.whole.shape[-2], "settings": {**self.settings}}

    @torch.no_grad()
    def outputs(self, network: Network, data: Examples, alone: bool) -> Tensor:
        """The outputs for the users' samples, each user's by themselves: as of a loaded model."""
        rule, parts = self.rule(network, self.whole.shape[-2], **self.settings), []
        if self.whole.ndim == 2:
            rule.load(self.whole)
        for u in np.flatnonzero(data.sizes).tolist():
            if self.whole.ndim == 3:
                rule.load(self.whole[u])
            rule.put({**{name: rows[u] for name, rows in self.own.items()}, **self.rows([u])})
            parts.append(outputs_of(rule, network, data.user(u)[0]))
        return torch.cat(parts or [data.x[:0]])

    def rows(self, places: Sequence[int]) -> Arrays:
        """The samples of some users, one user after the other."""
        ends = np.cumsum(self.sizes)
        each = [np.arange(ends[i] - self.sizes[i], ends[i]) for i in places if self.samples]
        return {name: array[np.concatenate(each)] for name, array in self.samples.items()}


def arrays_of(models: Combined, network: Network, places: list[int]) -> Arrays:
    """All of some users under the names of a file (rowfile.py), what they share once."""
    shared = models.whole.ndim == 2
    vectors = models.whole if shared else models.whole[places]
    found = {
        f"{'shared' if shared else 'users'}/{name_of(k, b.name)}": vectors[..., k, b.where].reshape(
            (*vectors.shape[:-2], *b.shape)
        )
        for k in range(vectors.shape[-2])
        for b in network.blocks
    }
    found |= {f"users/{name}": rows[places] for name, rows in models.own.items()}
    if models.samples:
        found |= {f"samples/{name}": rows for name, rows in models.rows(places).items()}
        found["counts"] = models.sizes[places]
    return found


@torch.no_grad()
def outputs_of(rule: Rule, network: Network, x: Tensor) -> Tensor:
    """One user's outputs (n, outputs)."""
    return chunks(lambda part: rule(network.arrange(part)), x.clone())


def loaded(spec: Mapping[str, Any], network: Network, arrays: Arrays) -> Rule:
    """The rule that a file names, with what the file has of a user; ModelError if it has not."""
    count, names = spec["models"], [b.name for b in network.blocks]
    if not all(name_of(k, name) in arrays for k in (0, count - 1) for name in names):
        raise ModelError(f"{count} models are said to be there, and are not: damaged.")
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise ModelError("numbers of a combination of models are not finite: damaged.")
    rule = rule_named(spec["rule"])(network, count, **spec["settings"])
    of_models = [{name: arrays[name_of(k, name)] for name in names} for k in range(count)]
    rule.load(np.stack([network.flatten(one) for one in of_models]))
    taken = {name_of(k, name) for k in range(count) for name in names}
    taken |= set(network.vector.fixed.tensors)  # which the network has already
    rule.put({name: array for name, array in arrays.items() if name not in taken})
    return rule


def name_of(k: int, parameter: str) -> str:
    """The name of a parameter of model k in the rule's state dict."""
    return f"models.{k}.{parameter}"


def rule_named(name: str) -> type[Rule]:
    """A rule by `module:class`, as a file has it."""
    module, _, cls = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), cls)
    except (ImportError, AttributeError) as error:
        raise ModelError(f"{name}: the rule of this model cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Rule)):
        raise ModelError(f"{name}: is no rule of models: damaged.")
    return found
