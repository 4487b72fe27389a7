"""The losses of several users at once, for modules of any class.

The module's own `forward` is run once for all users of a group, on `Users` in the place of tensors:
its parameters are `Slot`s while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from corsage.core.configuration.key_groups import TrainKeys
from corsage.networks.batches import Examples, Order
from corsage.networks.criterion import output_of
from corsage.networks.gradients import BARE_KEYS, AutogradLosses
from corsage.networks.inspection import as_channels_last, run_body
from corsage.networks.network import Network
from corsage.networks.together import stacked
from corsage.networks.together.slots import Slot, State
from corsage.networks.together.stacked_gradients import StackedLosses
from corsage.networks.together.users import Untraceable, Users, lifted


class TracedLosses(StackedLosses):
    """The losses of several users at once, through the module's own `forward`.

    Only the columns of `part` are computed: gradients are (users, P_part).
    """

    def __init__(
        self,
        network: Network,
        data: Examples,
        orders: Sequence[Sequence[Order]],
        group: Sequence[int],
        keys: TrainKeys = BARE_KEYS,
        part: slice | None = None,
    ) -> None:
        self.part = network.whole if part is None else part
        super().__init__(network, data, orders, group, keys)

    def layers_of(self) -> None:
        """Slots for all parameters; those that are trained, and columns that are not."""
        network = self.network
        self.slots = {id(b.tensor): Slot(b.where, b.shape) for b in network.blocks if b.trained}
        moved = [b for b in network.blocks if not b.trained]
        self.states = {id(b.tensor): State(b.where, b.shape, b.dtype) for b in moved}
        blocks = list(network.blocks_of(self.part))
        self.trained = [self.slots[id(b.tensor)] for b in blocks if b.trained]
        self.constant = [stacked.moved(b.where, self.part.start) for b in blocks if not b.trained]
        self.alone: dict[int, AutogradLosses] = {}

    def gradient(
        self,
        theta: Tensor,
        step: int,
        out: Tensor,
        beta: float = 0.0,
        scale: float | Tensor = 1.0,
        stream: int = 0,
    ) -> None:
        """One forward and backward pass of all users; of those with batches of one size, where
        a layer normalises by the batch.
        """
        runs = [(slice(0, self.active[step]), 0)]
        if self.network.batch_statistics:
            runs = self.plans[stream].alike(step)
        for users, width in runs:
            each = scale[users].view(-1, 1, 1) if isinstance(scale, Tensor) else scale
            self.use(theta[users], out[users], beta)
            x, labels, share = self.batch(step, stream, users, width)
            if self.data.losses is None:
                h = self.outputs(x)
                slope = self.sloped(users).slope(h.detach(), labels)
                torch.autograd.backward(h, slope.mul_(share * each))
            else:
                halves = self.halves(x, users)
                found = self.own_slopes(*halves, labels, step, scale, stream, users)
                backward(halves, found)
            for slot in self.trained:
                slot.finish()
            for state in self.states.values():
                state.put_back(theta[users])

    def outputs(self, x: Any) -> Tensor:
        """Those of all users (users, batch, outputs)."""
        with torch.enable_grad(), in_place_of_parameters(self.network.module, self.values()):
            found: Any = output_of(self.network.module(x))
            return found.rows()  # type: ignore[no-any-return]

    def halves(self, x: Any, users: slice) -> tuple[Tensor, Tensor]:
        """Features and outputs of some users in a row."""
        network, split, values = self.network, self.network.split, self.values()
        parts = (split.front, split.back) if split else (network.module,)
        with torch.enable_grad(), ExitStack() as stack:
            for module in parts:
                stack.enter_context(in_place_of_parameters(module, values))
            body = split.front if split else partial(run_body, network.module, network.head_module)
            features = seen = lifted(body(x), x.n)
            if self.data.into_head is not None:
                seen = Users(self.into_head(features.rows(), users), x.n)
            output: Any = output_of((split.back if split else network.head_module)(seen))
            return features.rows(), output.rows()

    def values(self) -> dict[int, Users]:
        """The stand-in of each parameter and moving buffer that the module has now."""
        loose = self.network.vector.loose
        now = {
            id(one.owner._buffers[one.attribute]): self.states[id(one.block.tensor)]
            for one in loose
        }
        return {**self.slots, **self.states, **now}

    def product(
        self, theta: Tensor, v: Tensor, step: int, out: Tensor, scale: float, stream: int = 0
    ) -> None:
        """User by user: the kernels have no second derivatives."""
        for row, u in enumerate(self.users[: self.active[step]]):
            if u not in self.alone:
                own = self.network, self.data, self.orders, [u], self.keys
                self.alone[u] = AutogradLosses(*own)
            mine = slice(row, row + 1)
            self.alone[u].product(theta[mine], v[mine], step, out[mine], scale, stream)

    def use(self, theta: Tensor, out: Tensor, beta: float) -> None:
        """Read theta; gradients go to out <- beta * out + gradient, of 0 where none is trained."""
        for slot in self.slots.values():
            slot.use(theta, None, 0, beta)
        for state in self.states.values():
            state.use(theta)
        for slot in self.trained:
            slot.use(theta, out, self.part.start, beta)
        for where in self.constant:
            out[:, where].mul_(beta) if beta else out[:, where].zero_()

    def inputs(self, rows: Tensor, step: int, stream: int, first: int) -> Any:
        """The batches of a step; images are changed first, if they are."""
        views, draws = self.data.views, self.draws[stream]
        if views is None or draws is None:
            return self.joined(self.data.x, rows)
        own = draws[step][first : first + len(rows), : rows.shape[1]]
        changed = views.apply(self.data.x[rows.flatten()], own.flatten(0, 1))
        return self.joined(changed, torch.arange(rows.numel(), device=rows.device).view(rows.shape))

    def joined(self, x: Tensor, rows: Tensor) -> Users:
        """The users' batches; images with the users' channels side by side."""
        users, batch = rows.shape
        if x.dim() != 4:
            return Users(x.index_select(0, rows.flatten()).view(users, batch, *x.shape[1:]), users)
        wide = x.index_select(0, rows.t().flatten()).view(batch, -1, *x.shape[2:])
        last = self.network.path.channels_last
        return Users(as_channels_last(wide) if last else wide, users, True)


def backward(ends: Sequence[Tensor], slopes: Sequence[Tensor | None]) -> None:
    """From all ends that have a slope and a way back."""
    both = [(t, d) for t, d in zip(ends, slopes, strict=True) if t.requires_grad and d is not None]
    torch.autograd.backward([t for t, _ in both], [d for _, d in both])


@contextmanager
def in_place_of_parameters(module: nn.Module, slots: dict[int, Users]) -> Iterator[None]:
    """Parameters and buffers of a module are slots for a while; so `forward` reads them."""
    places: list[tuple[Any, str, Any]] = []
    try:
        for m in module.modules():
            for home in (m._parameters, m._buffers):
                for name, tensor in home.items():
                    if id(tensor) in slots:
                        places.append((home, name, tensor))
            if isinstance(m, nn.RNNBase):
                m.__dict__["forward"] = recurrent(m)
        for home, name, tensor in places:
            home[name] = slots[id(tensor)]
        yield
    finally:
        for home, name, tensor in places:
            home[name] = tensor
        for m in module.modules():
            if isinstance(m, nn.RNNBase):
                m.__dict__.pop("forward", None)


MODULE_RULES: dict[str, Callable[..., Any]] = {
    "LSTM": torch._VF.lstm,
    "GRU": torch._VF.gru,
    "RNN_TANH": torch._VF.rnn_tanh,
    "RNN_RELU": torch._VF.rnn_relu,
}


def recurrent(module: nn.RNNBase) -> Callable[..., Any]:
    """The forward of a recurrent layer, user by user: torch's kernel is quicker than steps of all.

    An LSTM of 128 over 28 steps, batch 10: 1.05 ms a user, unrolled for ten users at once 2.4.
    """

    def forward(x: Users, hx: Any = None) -> Any:
        if module.dropout and module.num_layers > 1:
            raise Untraceable("it draws random numbers in training (dropout)")
        if not isinstance(x, Users) or x.ndim != 3 or hx is not None:
            raise Untraceable("its recurrent layer is given a state, or no batch")
        rows = x.rows()
        weights = [getattr(module, name).each() for name in module._flat_weights_names]
        batch = rows.shape[1 if module.batch_first else 2]
        size = getattr(module, "proj_size", 0) or module.hidden_size
        lead = module.num_layers * (2 if module.bidirectional else 1)
        state = rows.new_zeros(lead, batch, size)
        first = (state, rows.new_zeros(lead, batch, module.hidden_size))
        how = (module.bias, module.num_layers, 0.0, module.training, module.bidirectional)
        lstm = module.mode == "LSTM"
        found = [
            MODULE_RULES[module.mode](
                rows[u], first if lstm else state, [w[u] for w in weights], *how, module.batch_first
            )
            for u in range(x.n)
        ]
        output, *last = (Users(torch.stack(parts), x.n) for parts in zip(*found, strict=True))
        return output, tuple(last) if lstm else last[0]

    return forward
