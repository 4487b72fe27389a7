"""Inspection of a module and its head, by running it on an example.

A head is split off by a hook, so any user module will do in which the head is called once and
nothing follows it. Whether that holds, and whether features may be cached while the head trains,
is decided by the module types and by a numeric check.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from corsage.core.errors import ModelError
from corsage.networks import batch_norm
from corsage.networks.criterion import output_of
from corsage.networks.run_modes import Asked, draws_numbers

if TYPE_CHECKING:
    from corsage.networks.network import Network

RANDOM = (_DropoutNd, nn.RReLU)
MORE_SAMPLES = 4
"""Times as many samples as an example has: a forward may do something else with a larger batch."""


@dataclass
class Findings:
    """The facts about one network; `why` explains a False."""

    split_exact: bool = True
    cacheable: bool = True
    why: str = ""
    stochastic: bool = False
    channels_last: bool = False
    linear_head: bool = False
    width: int = 0


class HeadReached(BaseException):
    """Carries the features out of a forward pass that need not go on."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.features = features


def run_body(module: nn.Module, head: nn.Module, x: Tensor) -> Tensor:
    """Run the module up to its head and return the head's input."""

    def stop(_: nn.Module, args: tuple[Any, ...]) -> None:
        raise HeadReached(args[0])

    with head.register_forward_pre_hook(stop):
        try:
            module(x)
        except HeadReached as reached:
            return reached.features
    raise ModelError("the head was never called in the model's forward pass.")


def as_channels_last(x: Tensor) -> Tensor:
    """(n, c, h, w) images with channels_last strides (for c = 1 a view: only strides change)."""
    _, c, h, w = x.shape
    if c == 1 and x.is_contiguous():
        return x.as_strided(x.shape, (h * w, 1, w, 1), x.storage_offset())
    return x.contiguous(memory_format=torch.channels_last)


@contextmanager
def training(module: nn.Module, mode: bool) -> Iterator[None]:
    """Another mode for a while; each submodule gets back its own."""
    before = [(m, m.training) for m in module.modules()]
    module.train(mode)
    try:
        yield
    finally:
        for m, was in before:
            m.training = was


def inspect(network: Network, example: Tensor, uncut: str = "") -> Findings:
    """Find out about a network; its parameters, buffers and the random state stay as they are.

    `uncut` says why a head of several modules could not be cut off.
    """
    buffers = {n: b.clone() for n, b in network.module.named_buffers()}
    gpus = [network.device] if network.device.type == "cuda" else []
    network.channels_last = False
    found = Findings()
    with torch.no_grad(), torch.random.fork_rng(devices=gpus):
        if network.head_name is not None:
            watch(network, network.head_module, example, found)
        else:
            found.split_exact, found.why = network.split is not None, uncut
        if found.split_exact:
            check_cacheable(network, example, found)
        else:
            found.cacheable = False
        found.channels_last = gains_by_channels_last(network, example)
        for name, buffer in network.module.named_buffers():
            buffer.copy_(buffers[name])
    found.stochastic = (
        found.stochastic
        or any(draws(m) for m in network.module.modules())
        or draws_numbers(network.module, example, network.still)
    )
    return found


def draws(module: nn.Module) -> bool:
    """Tell whether a layer draws random numbers in training: a dropout of 0 does not."""
    if isinstance(module, nn.MultiheadAttention):
        return float(module.dropout) > 0
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1
    return isinstance(module, RANDOM) and getattr(module, "p", 1.0) > 0


def watch(network: Network, head: nn.Module, example: Tensor, found: Findings) -> None:
    """See how the head is called, and whether what it returns is what the module returns.

    The head's result is replaced by other numbers: a ReLU that follows it would not show on
    logits that happen to be positive.
    """
    calls: list[tuple[tuple[Any, ...], Tensor]] = []

    def replace(_: nn.Module, args: tuple[Any, ...], result: Any) -> Any:
        if not isinstance(result, Tensor):
            calls.append((args, torch.empty(0)))
            return result
        other = torch.linspace(-3.0, 2.0, result.numel()).to(result).reshape(result.shape)
        calls.append((args, other.clone()))
        return other

    with training(network.module, False), head.register_forward_hook(replace):
        output = output_of(network.module(example))
    name = network.said
    if len(calls) != 1:
        found.split_exact, found.why = False, f"{name} is called {len(calls)} times"
    elif len(calls[0][0]) != 1 or not isinstance(calls[0][0][0], Tensor):
        found.split_exact, found.why = False, f"{name} takes more than one tensor"
    elif not same(output, calls[0][1]):
        found.split_exact, found.why = False, f"something follows {name} in the model"
    elif tied(network):  # another head would be another body
        found.split_exact, found.why = False, "the body uses parameters of the head"
    else:
        # A subclass or a parametrised layer computes something else than x W' + b.
        own = sum(p.numel() for p in head.parameters()) == network.head.stop - network.head.start
        found.linear_head = own and type(head) is nn.Linear and calls[0][0][0].dim() == 2


def check_cacheable(network: Network, example: Tensor, found: Findings) -> None:
    """Caching is exact if training mode is eval mode: no randomness, no state, no mixing."""
    mine = {id(m) for m in network.head_module.modules()}
    mine |= {id(m) for one in network.still for m in one.modules()}
    for name, module in network.module.named_modules():
        if id(module) not in mine and (draws(module) or keeps_statistics(module)):
            kind = type(module).__name__
            found.cacheable, found.why = False, f"{kind} ({name}) in the body changes in training"
    before = [b.clone() for b in network.module.buffers()]
    with running(network, False), Asked() as asked:
        calm = network.features(example)
        found.width = calm[0].numel()
        # A batch norm may refuse one sample, and has been found out by now.
        alone = network.features(example[:1]) if found.cacheable else calm[:1]
        many = network.features(torch.cat([example] * MORE_SAMPLES)) if found.cacheable else calm
    with running(network, True):
        first, second = network.features(example), network.features(example)
    if not same(first, second):
        found.stochastic = True
        found.cacheable, found.why = False, found.why or "the body is random in training"
    if not torch.allclose(first, calm, rtol=1e-4, atol=1e-5):
        found.cacheable = False
        found.why = found.why or "the body is another function in training than in evaluation"
    if any(not torch.equal(a, b) for a, b in zip(before, network.module.buffers(), strict=True)):
        found.cacheable, found.why = False, found.why or "the body changes buffers in training"
    pairs = (alone, calm[:1]), (many[: len(calm)], calm)
    if not all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in pairs):
        found.cacheable, found.why = False, found.why or "the body mixes the samples of a batch"
    if asked.values:
        found.cacheable, found.why = False, found.why or "the body asks for values of a batch"


@contextmanager
def running(network: Network, mode: bool) -> Iterator[None]:
    """A network in another mode for a while."""
    with training(network.module, mode):
        network.train(mode)
        yield


def keeps_statistics(module: nn.Module) -> bool:
    """Tell whether a layer normalises by the batch or by running statistics, as BatchNorm does."""
    if batch_norm.stands(module):
        return False
    return isinstance(module, _NormBase) and (
        module.track_running_stats or not isinstance(module, nn.modules.instancenorm._InstanceNorm)
    )


def gains_by_channels_last(network: Network, example: Tensor) -> bool:
    """On a CPU convolutions do, if the model takes such images at all (`.view` may not).

    A group norm may not: if its input needs no gradient, torch's backward pass in that layout ends
    the process (2.13).
    """
    if network.device.type != "cpu" or example.dim() != 4:
        return False
    if not any(isinstance(m, nn.Conv2d) for m in network.module.modules()):
        return False
    try:
        with training(network.module, False):
            with Called() as called:
                output = output_of(network.module(example))
            if "group_norm" in called.names:
                return False
            again = output_of(network.module(as_channels_last(example)))
        with training(network.module, True):
            network.module(as_channels_last(example))
    except RuntimeError:
        return False
    return torch.allclose(again, output, rtol=1e-3, atol=1e-4)


class Called(TorchFunctionMode):
    """Notes which of torch's functions are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.names.add(function.__name__)
        return function(*args, **(kwargs or {}))


def same(a: Any, b: Any) -> bool:
    """Tell whether two results are tensors of the same numbers."""
    return (
        isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape and torch.equal(a, b)
    )


def tied(network: Network) -> bool:
    """Tell whether a parameter of the head is used under another name outside it."""
    if network.head_name is None:
        return False  # it is cut off where these come in first
    prefix = f"{network.head_name}." if network.head_name else ""
    every = network.vector.module.named_parameters(remove_duplicate=False)
    mine = {id(p) for p in network.head_module.parameters()}
    return any(id(p) in mine and not name.startswith(prefix) for name, p in every)
