"""A module cut in two: what comes before some of its parameters are used, and the rest.

The module is traced (torch.fx). The cut is where the first of these parameters comes in; only one
tensor may cross it. Whether the halves compute what the module does is checked by numbers, in
training and in evaluation.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from corsage.core.seeding import reseed
from corsage.networks import batch_norm
from corsage.networks.criterion import output_of
from corsage.networks.run_modes import in_mode

DRAWING_LAYERS = (nn.modules.dropout._DropoutNd, nn.RReLU)


class Uncut(Exception):
    """A module cannot be cut, for this reason."""


@dataclass(frozen=True)
class Cut:
    """Two modules, one after the other; they share the parameters of what was cut.

    Parameters
    ----------
    front, back : `back(front(x))` is the module's output.
    mixed : why the back uses other trained parameters than those that it was cut for, if it does.
    """

    front: nn.Module
    back: nn.Module
    mixed: str


def cut(
    module: nn.Module,
    late: Collection[Tensor],
    example: Tensor,
    still: Collection[nn.Module] = (),
    others: Collection[Tensor] = (),
) -> Cut:
    """The module cut before `late`, tensors of it, are used; Uncut where it cannot be.

    The cut is `mixed` if some of `others` are used after it.
    """
    ids = {id(tensor) for tensor in late}
    try:
        graph = fx.Tracer().trace(module)
    except Exception as error:
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise Uncut(f"it cannot be traced ({first[:120]})") from error
    quiet = {id(m) for one in still for m in one.modules()}
    sides = Sides(module, graph, ids, quiet, {id(tensor) for tensor in others})
    found = Cut(sides.front(), sides.back(), sides.mixed)
    check(module, found, example, still)
    return found


class Sides:
    """On which side of the cut the nodes of a graph are.

    `late` nodes come after it; `free` ones depend on no sample, and are on either side.
    """

    def __init__(
        self, module: nn.Module, graph: fx.Graph, ids: set[int], quiet: set[int], others: set[int]
    ) -> None:
        self.module, self.graph, self.ids, self.quiet = module, graph, ids, quiet
        self.others = others
        self.late: set[fx.Node] = set()
        self.free: set[fx.Node] = set()
        self.moved = ""  # the first layer that moves in training, and is late for no other reason
        for node in graph.nodes:
            self._place(node)
        self.crossing, before = self._last_cut()
        behind = [node for node in graph.nodes if node not in before]
        mixed = any(id(t) in self.others for node in behind for t in self._tensors(node))
        self.mixed = (self.moved or "what is shared comes after it") if mixed else ""

    def _place(self, node: fx.Node) -> None:
        inputs = node.all_input_nodes
        if node.op == "placeholder":
            return
        module = self.module.get_submodule(str(node.target)) if node.op == "call_module" else None
        used = any(id(tensor) in self.ids for tensor in self._tensors(node))
        draws = module is not None and self._draws(module)
        if module is not None and draws and not (used or self.late):
            kind, remedy = type(module).__name__, "; set batch-norm=frozen"
            self.moved = f"{kind} ({node.target}) in front of it changes in training" + (
                remedy if batch_norm.layers(module) else ", where it is of several modules"
            )
        if node.op == "output" or draws or used or any(n in self.late for n in inputs):
            self.late.add(node)
        elif node.op == "get_attr" or (inputs and all(n in self.free for n in inputs)):
            self.free.add(node)

    def _last_cut(self) -> tuple[fx.Node, set[fx.Node]]:
        """The last node by which alone all goes on that comes before the late ones, and these.

        An adapter runs beside the layer that it adapts: then the cut is before both of them.
        """
        early = [n for n in self.graph.nodes if n not in self.late and n not in self.free]
        for node in reversed(early):
            before = needed(node, set())
            leaving = {n for n in before - self.free if set(n.users) - before}
            if leaving == {node} and any(n.op == "placeholder" for n in before):
                return node, before
        raise Uncut("several values cross from one part to the other")

    def _tensors(self, node: fx.Node) -> list[Tensor]:
        """The parameters and buffers that a node uses."""
        if node.op == "call_module":
            own = self.module.get_submodule(str(node.target))
            return [*own.parameters(), *own.buffers()]
        if node.op == "get_attr":
            path, _, name = str(node.target).rpartition(".")
            found = getattr(self.module.get_submodule(path), name)
            return [found] if isinstance(found, Tensor) else []
        return []

    def _draws(self, module: nn.Module) -> bool:
        """Tell whether a module draws random numbers in training, or keeps statistics."""
        moving = isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats
        kinds = isinstance(module, DRAWING_LAYERS) and getattr(module, "p", 1.0) != 0
        still = batch_norm.stands(module) or id(module) in self.quiet
        return (kinds or moving) and not still

    def front(self) -> nn.Module:
        """From the samples to the one value that crosses."""
        graph = fx.Graph()
        copied = copies(graph, self.graph, {}, needed(self.crossing, set()))
        graph.output(copied[self.crossing])
        return as_module(self.module, graph)

    def back(self) -> nn.Module:
        """From that value to the output."""
        graph = fx.Graph()
        (last,) = (node for node in self.graph.nodes if node.op == "output")
        start = {self.crossing: graph.placeholder("features")}
        copies(graph, self.graph, start, needed(last, {self.crossing}))
        return as_module(self.module, graph)


def needed(node: fx.Node, without: set[fx.Node]) -> set[fx.Node]:
    """A node and all that it is computed of, but for some and what these are of."""
    found, todo = set[fx.Node](), [node]
    while todo:
        one = todo.pop()
        if one not in found and one not in without:
            found.add(one)
            todo += one.all_input_nodes
    return found


def copies(
    graph: fx.Graph, source: fx.Graph, start: dict[fx.Node, fx.Node], chosen: set[fx.Node]
) -> dict[fx.Node, fx.Node]:
    """Some nodes of a graph, copied into another."""
    copied = dict(start)
    for node in source.nodes:
        if node in chosen:
            copied[node] = graph.node_copy(node, lambda n: copied[n])
    return copied


def as_module(root: nn.Module, graph: fx.Graph) -> nn.Module:
    """A graph as a module; one of nothing but layers in a row is a Sequential."""
    inner = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    before = next(node for node in graph.nodes if node.op == "placeholder")
    for node in inner:
        if node.op != "call_module" or node.args != (before,) or node.kwargs:
            return fx.GraphModule(root, graph)
        before = node
    last = next(node for node in graph.nodes if node.op == "output")
    if last.args != (before,):
        return fx.GraphModule(root, graph)
    return nn.Sequential(*(root.get_submodule(str(node.target)) for node in inner))


def check(module: nn.Module, found: Cut, example: Tensor, still: Collection[nn.Module]) -> None:
    """Uncut if the halves compute something else than the module, or move other buffers."""
    for mode in (False, True):
        whole = outcome(module, lambda: output_of(module(example)), mode, still)
        halves = outcome(
            module, lambda: output_of(found.back(found.front(example))), mode, still, found
        )
        if not all(torch.equal(a, b) for a, b in zip(whole, halves, strict=True)):
            raise Uncut(
                "traced, it computes something else in " + ("training" if mode else "evaluation")
            )


def outcome(
    module: nn.Module, run: Any, mode: bool, still: Collection[nn.Module], found: Cut | None = None
) -> list[Tensor]:
    """The output of a pass in a mode, and the buffers after it; both always draw the same."""
    with in_mode(module, mode, tuple(still)):
        for half in (found.front, found.back) if found else ():
            half.train(mode)
        for one in still:
            one.eval()
        reseed(0)
        result = run()
        return [result.clone(), *(b.clone() for b in module.buffers())]
