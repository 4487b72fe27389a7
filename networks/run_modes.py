"""Facts about a module by running it: its head, and the buffers that move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._python_dispatch import TorchDispatchMode

from corsage.core.errors import ONE_SAMPLE, ModelError
from corsage.networks import batch_norm
from corsage.networks.criterion import output_of
from corsage.networks.parameter_groups import Names, Owners, Words, few, owners


@dataclass(frozen=True)
class Division:
    """The owners of a module's parts, and how it is to be run.

    Parameters
    ----------
    owners : whose each parameter and buffer is.
    still : modules that are frozen as a whole: they stay in evaluation mode.
    rebound : buffers in whose place a training pass puts others.
    """

    owners: Owners
    still: tuple[nn.Module, ...]
    rebound: frozenset[str]


def divided(module: nn.Module, words: Words, example: Tensor) -> Division:
    """The division of a module by the keys; what is frozen requires no gradient from here on."""
    names = Names(module)
    frozen = names.taken("frozen", words.frozen) if words.frozen else frozenset()
    for name in frozen:
        if isinstance(tensor := names.tensors[name], nn.Parameter):
            tensor.requires_grad_(False)
    still = still_modules(names, frozen)
    moved, rebound = moving_buffers(names, still, example, frozen)
    refuse_moving(words, frozen & moved)
    fixed = frozen | {
        name
        for name, tensor in names.tensors.items()
        if (not tensor.requires_grad if isinstance(tensor, nn.Parameter) else name not in moved)
    }
    split = words.head or words.personal or words.shared
    head = None if split else running_head(names, example)
    return Division(owners(names, words, frozenset(fixed), head), still, rebound - fixed)


def refuse_moving(words: Words, moved: frozenset[str]) -> None:
    """ModelError if a pattern freezes what every training pass changes: it would be no constant."""
    if moved:
        raise ModelError(
            f"frozen={words.frozen}: training passes change {few(moved)}; name the whole module "
            f"that has it, which then stays in evaluation mode, or leave it out: "
            f"frozen=...,!{min(moved)}."
        )


def still_modules(names: Names, frozen: frozenset[str]) -> tuple[nn.Module, ...]:
    """The outermost modules all of whose parameters and buffers a pattern froze."""
    found: list[str] = []
    for name in names.modules if frozen else ():
        own = names.inside(name)
        inside = any(name.startswith(f"{other}.") or not other for other in found)
        if own and own <= frozen and not inside:
            found.append(name)
    return tuple(names.modules[name] for name in found)


@contextmanager
def in_mode(module: nn.Module, mode: bool, still: Sequence[nn.Module] = ()) -> Iterator[None]:
    """Another mode for a while, but for some modules, and no trace: of draws, or in buffers."""
    before = [(m, m.training) for m in module.modules()]
    owned = [
        (m._buffers, n, b, b.clone())
        for m in module.modules()
        for n, b in m._buffers.items()
        if b is not None
    ]
    gpus = [b.device for b in module.parameters() if b.device.type == "cuda"][:1]
    with torch.no_grad(), torch.random.fork_rng(devices=gpus):
        module.train(mode)
        for one in still:
            one.eval()
        try:
            yield
        finally:
            for m, was in before:
                m.training = was
            for buffers, name, buffer, values in owned:
                buffers[name] = buffer.copy_(values)


def moving_buffers(
    names: Names, still: Sequence[nn.Module], example: Tensor, frozen: frozenset[str] = frozenset()
) -> tuple[frozenset[str], frozenset[str]]:
    """The buffers that a training pass changes, and those in whose place it puts others.

    Running statistics do in any case. Of a module that cannot be run so, all floats do that are not
    frozen.
    """
    module = names.module
    buffers = dict(module.named_buffers())
    before = {name: buffer.clone() for name, buffer in buffers.items()}
    moved = {names.first[id(b)] for b in statistics(module, still)}
    rebound: set[str] = set()
    try:
        with in_mode(module, True, still):
            module(example)
            for name, now in module.named_buffers():
                if name in buffers and now is not buffers[name]:
                    rebound.add(name)
                if name in rebound or not torch.equal(now, before.get(name, now)):
                    moved.add(name)
    except Exception:
        moved |= {n for n, b in buffers.items() if b.is_floating_point() and n not in frozen}
    return frozenset(moved), frozenset(rebound)


def statistics(module: nn.Module, still: Sequence[nn.Module]) -> Iterator[Tensor]:
    """The running statistics of normalising layers, counters included, that are not frozen."""
    quiet = {id(m) for one in still for m in one.modules()}
    for one in module.modules():
        if batch_norm.stands(one) or id(one) in quiet:
            continue
        if isinstance(one, _NormBase) and one.track_running_stats:
            yield from one.buffers(recurse=False)


def draws_numbers(module: nn.Module, example: Tensor, still: Sequence[nn.Module] = ()) -> bool:
    """Tell whether a training pass draws random numbers, as F.dropout does, too."""
    try:
        with in_mode(module, True, still):
            before = random_state(example.device)
            module(example)
            return not torch.equal(before, random_state(example.device))
    except Exception:  # what cannot be run says so when it is trained
        return False


def refuses_one(module: nn.Module, example: Tensor, still: Sequence[nn.Module] = ()) -> bool:
    """Tell whether BatchNorm cannot be trained on one sample; of an image it has several values."""
    try:
        with in_mode(module, True, still):
            module(example[:1])
    except ValueError as error:
        return str(error).startswith(ONE_SAMPLE)
    except Exception:  # what cannot be run says so when it is trained
        return False
    return False


def random_state(device: torch.device) -> Tensor:
    """The state of torch's random numbers of a device."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


class Asked(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether anybody asks for the value of a tensor, as `if x.sum() > 0` does."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here: torch need not load its compiler, of .6 CPU s and 70 MB."""
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.values |= function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def running_head(names: Names, example: Tensor) -> str:
    """The name of the last linear layer that runs, if the output is made of nothing but its own.

    What follows it may have no parameters. ModelError if there is none, or it is ambiguous.
    """
    module = names.module
    linear = {id(m): n for n, m in names.modules.items() if isinstance(m, nn.Linear)}
    if not linear:
        raise ModelError(
            f"the model has no linear layer that could be its head: give one by head=NAME. "
            f"{names.known()}"
        )
    order = order_of_calls(module, example)
    ran = [key for key in order if key in linear]
    if not ran:
        raise ModelError(
            "none of the model's linear layers runs, so none can be its head: give one by "
            f"head=NAME. {names.known()}"
        )
    last = ran[-1]
    after = order[len(order) - 1 - order[::-1].index(last) + 1 :]
    others = {id(m): n for n, m in names.modules.items()}
    if after:
        raise ModelError(
            f"the head is ambiguous: {others[after[0]]} runs after {linear[last]}, the last linear "
            f"layer; say which it is by head=NAME. {names.known()}"
        )
    if not made_of(module, names.modules[linear[last]], order.count(last), example):
        raise ModelError(
            f"the head is ambiguous: the output is not made of {linear[last]}'s alone, the last "
            f"linear layer that runs; say which it is by head=NAME. {names.known()}"
        )
    return str(linear[last])


def order_of_calls(module: nn.Module, example: Tensor) -> list[int]:
    """The innermost modules with parameters, and linear ones, in the order in which they end."""
    order: list[int] = []
    own = {id(m) for m in module.modules() if any(True for _ in m.parameters(recurse=False))}
    watched = [
        m
        for m in module.modules()
        if isinstance(m, nn.Linear)
        or (id(m) in own and not any(id(other) in own for other in m.modules() if other is not m))
    ]
    handles = [m.register_forward_hook(lambda m, *_: order.append(id(m))) for m in watched]
    try:
        with in_mode(module, False):
            module(example)
    finally:
        for handle in handles:
            handle.remove()
    return order


def made_of(module: nn.Module, head: nn.Module, calls: int, example: Tensor) -> bool:
    """Tell whether the output depends on samples by what the head puts out alone, in its last call.

    With other numbers in the place of that, other samples must give the same, and no matrix may
    be used after it: `F.linear(x, self.fc.weight)` is a layer, too, though no module runs.
    """
    called = 0

    def replace(_: nn.Module, __: Any, result: Any) -> Any:
        nonlocal called
        called += 1
        if not isinstance(result, Tensor) or called % calls:
            return result
        return torch.linspace(-3.0, 2.0, result.numel()).to(result).reshape(result.shape)

    handle = head.register_forward_hook(replace)
    try:
        with in_mode(module, False):
            with torch.enable_grad():
                one = output_of(module(example))
            other = output_of(module((example.flip(0) * 0.5).to(example.dtype)))
            same = torch.equal(one, other)
            return same and not uses_matrices(module, one)
    finally:
        handle.remove()


def uses_matrices(module: nn.Module, output: Tensor) -> bool:
    """Tell whether an output depends on a trained parameter of two axes or more."""
    if not output.requires_grad:
        return False
    trained = [p for p in module.parameters() if p.requires_grad and p.dim() > 1]
    with torch.enable_grad():
        found = torch.autograd.grad(output.sum(), trained, allow_unused=True)
    return any(g is not None for g in found)
