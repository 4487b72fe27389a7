"""Models whose `forward` is a chain of plain layers, whatever class they are of.

torch.fx reads the chain out of the module. What it cannot read, or what is no chain, has none.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from corsage.networks.criterion import output_of
from corsage.networks.inspection import running, training

if TYPE_CHECKING:
    from corsage.networks.network import Network

BATCH_SIZE = object()
"""Stands for the number of samples, where a forward asks for it."""
PLAIN_LAYERS = (nn.Linear, nn.Conv2d, nn.MaxPool2d, nn.ReLU, nn.Flatten, nn.Identity)


Plain = tuple[list[nn.Module], list[nn.Module], bool, int]


def plain_layers(network: Network, example: Tensor) -> Plain:
    """The plain layers of a network and of its head, none if they are no chain; whether their
    kernels can train copies of it together; and the most channels that a convolution puts out.
    """
    layers = chain_of(network.module, example)
    wide = widest_convolution(network.module)
    return layers, head_layers(network, example), stackable(network, layers), wide


def chain_of(module: nn.Module, example: Tensor) -> list[nn.Module]:
    """The layers, one after the other; none if it is no chain, or not that on an example.

    A ReLU before max-pooling comes after it: the same function, on fewer numbers.
    """
    if any(True for _ in module.buffers()):  # it may do more with them than fx shows
        return []
    try:
        with training(module, True):
            layers = swapped(read(fx.symbolic_trace(module)))
        with training(module, False):
            if not layers or not same_function(module, layers, example):
                return []
            if not is_plain(module, layers) and not same_gradients(module, layers, example):
                return []
    except Exception:  # anything may be raised by a forward that is given no tensor
        return []
    return layers


def head_layers(network: Network, example: Tensor) -> list[nn.Module]:
    """The layers of a head on features that is a chain of linear layers and ReLUs; else none."""
    if network.linear_head:
        return [network.head_module]
    if not network.split_exact or not network.cacheable:
        return []
    with running(network, False), torch.no_grad():
        features = network.features(example)
    layers = chain_of(network.head_module, features) if features.dim() == 2 else []
    kinds = {type(m) for m in layers}
    of_layers = [id(p) for m in layers for p in m.parameters()]
    own = sorted(id(b.tensor) for b in network.blocks_of(network.head))
    plain = all(map(is_plain_layer, layers)) and kinds <= {nn.Linear, nn.ReLU}
    return layers if plain and sorted(of_layers) == own and type(layers[-1]) is nn.Linear else []


def same_function(module: nn.Module, layers: list[nn.Module], example: Tensor) -> bool:
    """Tell whether the layers do to an example what the module does."""
    found = example
    with torch.no_grad():
        wanted = output_of(module(example.clone()))
        for layer in layers:
            found = layer(found.clone())
    return isinstance(wanted, Tensor) and torch.equal(wanted, found)


def is_plain(module: nn.Module, layers: list[nn.Module]) -> bool:
    """Tell whether it is nothing but Sequentials of these layers: no forward of its own is run."""
    own = [m for m in module.modules() if type(m) is not nn.Sequential]
    parts = (m for m in own if any(True for _ in m.parameters()))
    return {id(m) for m in parts} <= {id(m) for m in layers} and type(module) is nn.Sequential


def same_gradients(module: nn.Module, layers: list[nn.Module], example: Tensor) -> bool:
    """Tell whether each parameter has the gradient in the module that it has in the layers.

    fx does not see `torch.no_grad()`; and a parameter that nothing uses is in no layer.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    with torch.enable_grad():
        found = nn.Sequential(*layers)(example.clone())
        each = [
            torch.autograd.grad(output.square().sum(), trained, allow_unused=True)
            for output in (output_of(module(example.clone())), found)
        ]
    return all(
        a is not None and b is not None and torch.allclose(a, b) for a, b in zip(*each, strict=True)
    )


def read(traced: fx.GraphModule) -> list[nn.Module]:
    """The layers of a graph in which each takes the result of the one before and nothing else."""
    layers: list[nn.Module] = []
    last: Any = None
    sizes: dict[fx.Node, Any] = {}
    for node in traced.graph.nodes:
        if node.op == "placeholder" and last is None:
            last = node
        elif node.op == "output" and node.args == (last,):
            return layers
        elif is_size(node, sizes, last):
            continue
        elif not node.args or node.args[0] is not last or node.op in ("get_attr", "placeholder"):
            return []
        else:
            layer = layer_of(traced, node, sizes)
            if layer is None:
                return []
            if not isinstance(layer, nn.Identity):
                layers.append(layer)
            last = node
    return []


def is_size(node: fx.Node, sizes: dict[fx.Node, Any], last: Any) -> bool:
    """Tell whether a node asks for the number of samples, and note it."""
    first: Any = node.args[0] if node.args else None
    if node.target == "size" and node.args in ((last, 0), (last,)):
        sizes[node] = BATCH_SIZE if len(node.args) > 1 else [BATCH_SIZE]
    elif node.target is getattr and node.args == (last, "shape"):
        sizes[node] = [BATCH_SIZE]
    elif node.target is operator.getitem and isinstance(sizes.get(first), list):
        sizes[node] = BATCH_SIZE if node.args[1] == 0 else None
    return node in sizes


def layer_of(traced: fx.GraphModule, node: fx.Node, sizes: dict[fx.Node, Any]) -> nn.Module | None:
    """The layer that a node stands for; None if it is none of the plain ones."""
    if node.op == "call_module":
        layer = traced.get_submodule(str(node.target))
        silent = isinstance(layer, nn.Dropout) and not layer.p
        return nn.Identity() if silent else layer if len(node.args) == 1 else None
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    rule = FUNCTIONS.get(str(name).strip("_"))
    args = [sizes.get(a, a) if isinstance(a, fx.Node) else a for a in node.args[1:]]
    return rule(*args, **node.kwargs) if rule else None


def relu(inplace: bool = False) -> nn.Module:
    """F.relu."""
    return nn.ReLU()


def flatten(start_dim: int = 0, end_dim: int = -1) -> nn.Module | None:
    """Tensor.flatten of all but the samples."""
    return nn.Flatten() if (start_dim, end_dim) == (1, -1) else None


def view(*shape: Any) -> nn.Module | None:
    """Tensor.view to (samples, numbers)."""
    form = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape
    if len(form) != 2 or not (form[0] is BATCH_SIZE or form[0] == -1) or form == (-1, -1):
        return None
    return nn.Flatten() if isinstance(form[1], int) else None


def dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> nn.Module | None:
    """F.dropout that drops nothing."""
    return None if training and p else nn.Identity()


FUNCTIONS: dict[str, Callable[..., nn.Module | None]] = {
    "relu": relu,
    "flatten": flatten,
    "view": view,
    "reshape": view,
    "dropout": dropout,
    "max_pool2d": nn.MaxPool2d,
}


def swapped(layers: list[nn.Module]) -> list[nn.Module]:
    """Each ReLU that comes before a max-pooling after it."""
    order = list(layers)
    for i, (a, b) in enumerate(pairwise(layers)):
        if type(a) is nn.ReLU and type(b) is nn.MaxPool2d:
            order[i], order[i + 1] = b, a
    return order


def stackable(network: Network, layers: list[nn.Module]) -> bool:
    """Tell whether `Stacked` computes the same function as the network's module."""
    ends = bool(layers) and layers[-1] is network.head_module and network.linear_head
    shaped = [id(m) for m in layers if any(True for _ in m.parameters())]
    once = len({*shaped}) == len(shaped)
    own = {id(b.tensor) for b in network.blocks if b.trained}
    trained = all(id(p) in own for p in network.module.parameters()) and not network.has_buffers
    return ends and once and trained and all(is_plain_layer(m) for m in layers) and in_order(layers)


def widest_convolution(module: nn.Module) -> int:
    """The largest number of channels that a convolution puts out; 0 without convolutions."""
    found = (m.out_channels for m in module.modules() if isinstance(m, nn.Conv2d))
    return max(found, default=0)


def is_plain_layer(module: nn.Module) -> bool:
    """Tell whether a layer is one of `PLAIN_LAYERS` with the usual options."""
    if type(module) not in PLAIN_LAYERS or module._forward_hooks or module._forward_pre_hooks:
        return False
    if isinstance(module, nn.Conv2d):
        usual = module.groups == 1 and module.padding_mode == "zeros"
        return usual and not isinstance(module.padding, str)
    if isinstance(module, nn.MaxPool2d):
        return not module.return_indices
    return not isinstance(module, nn.Flatten) or (module.start_dim, module.end_dim) == (1, -1)


def in_order(layers: list[nn.Module]) -> bool:
    """Tell whether it is convolutions first (if any), one Flatten, then linear layers."""
    kinds = [type(m) for m in layers]
    if nn.Conv2d not in kinds and nn.MaxPool2d not in kinds:
        return True
    flat = kinds.index(nn.Flatten) if nn.Flatten in kinds else 0
    before, after = set(kinds[:flat]), set(kinds[flat:])
    return (
        kinds[0] is nn.Conv2d and nn.Linear not in before and not after & {nn.Conv2d, nn.MaxPool2d}
    )
