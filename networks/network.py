"""A torch model as a network that algorithms split into a body and a head.

What travels of it is a `Vector`, [body | head]: what is shared, and what is a user's own. What the
papers write as theta = (phi, h) is `flat`, `flat[body]`, `flat[head]`; averages, proximal pulls and
control variates are plain vector arithmetic on it.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from corsage.core.arrays import Arrays, Floats32
from corsage.core.registry import attached, attachment
from corsage.core.training_paths import AUTO, LAYERS, PATHS, Path
from corsage.networks import batch_norm, inspection
from corsage.networks.criterion import CROSS_ENTROPY, Criterion, output_of
from corsage.networks.parameter_groups import Words
from corsage.networks.run_modes import divided
from corsage.networks.vector import Block, Vector, is_weight

if TYPE_CHECKING:
    from corsage.networks.cut import Cut

__all__ = ["NETWORK_LOCK", "Block", "Network", "is_weight"]

NETWORK_LOCK = threading.RLock()
"""Held while parameters that were put into a network are used, and while random numbers are.

A process has one network a model, into which each user's parameters are put in turn, and torch has
one generator of random numbers. Two runs in two threads, or predictions in a pool of threads, would
read each other's users without a word.
"""


class Network:
    """A module whose parameters are views of `flat`, with a body and a head.

    The head is found by running the module, or said by `words`, patterns, or the name of
    a module; it need not be one. `rear` is the network behind what is frozen in front of all
    that trains, on the features of that; it has the same vector, and is the network itself where
    there is no such front.

    `split_exact`: logits(features(x)) is the module's output. `cacheable`: features computed once
    are those of every later head epoch. `why` says what stands against either. `stochastic`:
    training draws random numbers (dropout). `batch_statistics`: it normalises by those of a batch.
    `takes_channels_last`: images may have that layout, and with `channels_last` they have it.
    `layers`: those of a model that is a chain of plain layers; `head_layers`: of a head that is one
    of linear layers. `stackable`: their kernels can train
    copies of it together. `widest_convolution`: the most channels that a convolution puts out.
    `tokens`: samples are numbers of words, tried below this one; 0: not. `inputs`: their type.
    `criterion`: what it is trained and judged by. `path`: how many users are trained together, and
    in which layout, unless it is `stackable`.
    """

    def __init__(
        self,
        module: nn.Module,
        words: Words | str,
        example: Tensor,
        device: str = "cpu",
        criterion: Criterion = CROSS_ENTROPY,
    ) -> None:
        self.criterion, self.device = criterion, torch.device(device)
        self.module = module.float().to(device)
        self.tokens = 0 if example.is_floating_point() else int(example.max()) + 1
        self.inputs = torch.int64 if self.tokens else torch.float32
        example = example.to(self.device, self.inputs)
        words = Words(words) if isinstance(words, str) else words
        division = divided(self.module, words, example)
        self.still, owners = division.still, division.owners
        self.said, self.head_name = owners.said, owners.head
        self.vector = vector = Vector(self.module, division, self.device)
        self.blocks = vector.blocks
        self.body, self.head, self.whole = vector.body, vector.head, vector.whole
        self.has_buffers = vector.has_buffers
        self.front: nn.Module | None = None
        self._look(example)
        self._take(AUTO)
        self.rear, self.in_front = self._behind(example)
        vector.set(self.whole, self.initial)
        vector.fixed.seal()

    def _look(self, example: Tensor) -> None:
        """Find out what the module does with its head."""
        self.head_module = self.module  # all that follows the body
        self.split: Cut | None = None
        uncut = ""
        if self.head_name is not None:
            self.head_module = self.vector.module.get_submodule(self.head_name)
        else:
            cuts = attached("cut")
            own, others = self.vector.tensors(self.head), self.vector.tensors(self.body)
            try:
                self.split = cuts.cut(self.module, own, example, self.still, others)
                uncut = f"{self.said}: {self.split.mixed}" if self.split.mixed else ""
                self.head_module = self.split.back
            except cuts.Uncut as why:
                uncut = f"{self.said}: {why}"
            if uncut:
                self.split, self.head_module = None, self.module
        found = inspection.inspect(self, example, uncut)
        self.split_exact, self.cacheable, self.why = found.split_exact, found.cacheable, found.why
        self.stochastic = found.stochastic
        self.linear_head, self.width = found.linear_head, found.width
        several = attachment("together")
        plain = several.plain_layers(self, example) if several else ([], [], False, 0)
        self.layers, self.head_layers, self.chains, self.widest_convolution = plain
        self.takes_channels_last = found.channels_last
        self.batch_statistics = batch_norm.needs_two(self.module)

    def _take(self, path: str) -> None:
        """Take a path by its name."""
        self.stackable = self.chains and path in (AUTO, LAYERS)
        self.path = PATHS.get(path) or Path(0, self.takes_channels_last)
        self.channels_last = self.path.channels_last and self.takes_channels_last

    def along(self, path: str) -> Network:
        """The same network on a path; it has the same vector, so only one of them is in use."""
        other, rear = copy.copy(self), copy.copy(self.rear)
        other._take(path)
        rear._take(path)
        other.rear = rear.rear = other if self.rear is self else rear
        return other

    def _behind(self, example: Tensor) -> tuple[Network, str]:
        """The network behind a frozen front, and why there is none if something is frozen."""
        if not any(isinstance(t, nn.Parameter) for t in self.vector.fixed.tensors.values()):
            return self, ""
        cuts = attached("cut")
        try:
            found = cuts.cut(self.module, self.vector.tensors(self.whole), example, self.still)
        except cuts.Uncut as why:
            return self, str(why)
        if not any(True for _ in found.front.parameters()):
            return self, "what trains comes first"
        rear = copy.copy(self)
        rear.module, rear.front = found.back, found.front
        with torch.no_grad():
            self.train(False)
            found.front.eval()
            rear._look(found.front(example))
        rear._take(AUTO)
        rear.rear = rear
        return rear, ""

    # -- the flat vector ---------------------------------------------------------------------

    @property
    def flat(self) -> Tensor:
        """All that travels, one number after the other."""
        return self.vector.flat

    @property
    def grad(self) -> Tensor:
        """The gradients of `flat`."""
        return self.vector.grad

    @property
    def initial(self) -> Floats32:
        """The model's own values, before anybody trains it."""
        return self.vector.initial

    @property
    def decay(self) -> Tensor:
        """1 where weight decay applies, else 0."""
        return self.vector.decay

    def set(self, part: slice, values: Floats32 | Tensor) -> None:
        """Overwrite one part of the flat vector."""
        self.vector.set(part, values)

    def get(self, part: slice) -> Floats32:
        """A copy of one part of the flat vector."""
        return self.vector.get(part)

    def blocks_of(self, part: slice) -> Iterator[Block]:
        """The parameters and buffers that lie in one part."""
        return self.vector.blocks_of(part)

    def named(self, flat: NDArray[Any], part: slice | None = None) -> Arrays:
        """One part's flat values as arrays with the names and shapes of the state dict."""
        return self.vector.named(flat, part)

    def flatten(self, named: Mapping[str, NDArray[Any]], part: slice | None = None) -> Floats32:
        """The inverse of `named`; a key that is missing or misshapen is named."""
        return self.vector.flatten(named, part)

    def activate(self, part: slice) -> None:
        """Let only `part` require gradients: no work is done for what is frozen."""
        self.vector.activate(part)

    def gather(self) -> None:
        """Take in what somebody else did to the module: where its tensors are, what is frozen."""
        self.vector.gather()

    # -- the function ------------------------------------------------------------------------

    def train(self, mode: bool = True) -> None:
        """Training mode, or evaluation mode; what is frozen as a whole stays in the latter."""
        self.module.train(mode)
        for half in (self.split.front, self.split.back) if self.split else ():
            half.train(mode)
        for module in self.still:
            module.eval()

    def __call__(self, x: Tensor) -> Tensor:
        """The same as `forward`."""
        return self.forward(x)

    def forward(self, x: Tensor) -> Tensor:
        """The module's output: logits (batch, classes), or (batch, 1)."""
        if not self.vector.loose:
            return output_of(self.module(self.arrange(x)))
        self.vector.lend()
        output = output_of(self.module(self.arrange(x)))
        self.vector.take_back()
        return output

    def features(self, x: Tensor) -> Tensor:
        """phi(x): what goes into the head."""
        self.vector.lend()
        if self.split is not None:
            found: Tensor = self.split.front(self.arrange(x))
        else:
            found = inspection.run_body(self.module, self.head_module, self.arrange(x))
        self.vector.take_back()
        return found

    def logits(self, features: Tensor) -> Tensor:
        """The head on features."""
        self.vector.lend()
        if self.split is not None:
            output = output_of(self.split.back(features))
        else:
            output = self.head_module(features)
        self.vector.take_back()
        return output

    @torch.no_grad()
    def in_front_of(self, x: Tensor) -> Tensor:
        """The frozen front's features of samples, which stay the same all run."""
        assert self.front is not None
        self.front.eval()
        found: Tensor = self.front(x)
        return found

    def arrange(self, x: Tensor) -> Tensor:
        """Images in the memory layout that the module is quickest with; the values are the same.

        PFLlib's CNN with channels_last images took .56 of the CPU time of the default at batch
        50 and .73 at batch 10, LeNet-5 .88 at batch 10 (weights stay as they are: converting
        them too gains nothing). A rule, not a timing: every process computes the same numbers.
        """
        return inspection.as_channels_last(x) if self.channels_last and x.dim() == 4 else x

    def described(self) -> str:
        """The division of the model, in one line."""
        trained = self.whole.stop
        fixed = self.vector.fixed.size
        head = self.head.stop - self.head.start
        words = f"{trained:,} of {trained + fixed:,} parameters train; head: {head:,} ({self.said})"
        words += "; samples are whole numbers, which it takes as they are" * bool(self.tokens)
        if fixed and self.rear is not self:
            words += "; features of the frozen front are computed once a run"
        elif self.in_front:
            words += f"; the frozen part is computed in every step: {self.in_front}"
        if not self.rear.cacheable:
            words += f"; features are not cached: {self.rear.why}"
        return words
