"""Each method of SGD as a loop in plain torch: a user's step in a round, and the server's merge.

A `Plain` is all that a method is; `played` is the one loop that all of them share. Nothing of the
methods' own code is in it but who is drawn, and in which batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from corsage.core.configuration.key_groups import ServerKeys
from corsage.core.seeding import generator
from corsage.datasets.dealing.federated import FederatedData
from corsage.networks.training import batches
from corsage.strategies.rounds.base import Strategy
from corsage.strategies.rounds.server_step import step as server_step
from tests.support.reference import (
    DECAY,
    KEYS,
    Extra,
    Vector,
    chosen,
    examples,
    flat,
    fresh,
    near,
    plain_sgd,
)

BODY, HEAD = 64 * 16 + 16, 16 * 10 + 10
START: Vector = flat(fresh())
"""What everybody begins with."""
EPOCHS, ROUNDS = 2, 4
Data = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Turn:
    """One user in one round: its data, its batches, and the keys of its SGD."""

    user: str
    number: int
    data: Data
    keys: Mapping[str, Any] = field(default_factory=lambda: KEYS)
    epochs: int = EPOCHS

    def batches(self, purpose: str) -> list[Any]:
        """As the run draws them."""
        rng = generator(0, purpose, self.number, self.user)
        return batches(rng, len(self.data[1]), self.epochs, 10)

    def sgd(
        self,
        start: Vector,
        purpose: str = "model",
        extra: Extra | None = None,
        frozen: int | None = None,
        of: Any = None,
    ) -> Vector:
        """`plain_sgd` on them."""
        steps = self.batches(purpose)
        return plain_sgd(start, self.data, steps, {**self.keys}, extra, frozen, of)


@dataclass(frozen=True)
class Plain:
    """A method.

    Parameters
    ----------
    step : of what is common, what a user kept (None at first), and its turn: what it sends, keeps.
    keys : of the run, besides the usual ones.
    first, merge : what is common at first, and out of it, the users' mean and the round's number.
    model : what a user is judged by, out of what is common and what it kept.
    shared : the part of what is common that the result holds.
    adapted : what a new user makes of what is common.
    tuned : what each user makes of what is common and what it kept, at the end, by the row's end.
    floats : what each user is sent in a round and sends, in numbers of 4 bytes.
    """

    step: Callable[[Any, Any, Turn], tuple[Vector, Any]]
    keys: Mapping[str, Any] = field(default_factory=dict)
    first: Callable[[], Any] = START.copy
    merge: Callable[[Any, Vector, int], Any] = lambda common, mean, number: mean
    model: Callable[[Any, Any], Vector] = lambda common, own: common
    shared: Callable[[Any], Vector] = lambda common: common
    adapted: Callable[[Any, Turn], Vector] | None = None
    tuned: Mapping[str, Callable[[Any, Any, Turn], Vector]] = field(default_factory=dict)
    floats: int = BODY + HEAD


def played(
    plain: Plain, strategy: Strategy[Any, Any], data: FederatedData, rounds: int = ROUNDS
) -> tuple[Any, dict[str, Any]]:
    """What is common after the rounds, and what each user kept."""
    common, own = plain.first(), dict.fromkeys(data.users)
    train = strategy.config.train
    for number in range(1, rounds + 1):
        keys = {**KEYS, "momentum": train.momentum, "lr": train.of_round(number, rounds).lr}
        sent, weights = [], []
        for user in chosen(strategy, number):
            mine = examples(data, user)
            up, own[user] = plain.step(common, own[user], Turn(user, number, mine, keys))
            sent.append(up)
            weights.append(len(mine[1]) if train.weighting == "examples" else 1)
        common = plain.merge(common, np.average(sent, axis=0, weights=weights), number)
    return common, own


def models(plain: Plain, common: Any, own: Mapping[str, Any]) -> dict[str, Vector]:
    """What every user is judged by."""
    return {user: plain.model(common, kept) for user, kept in own.items()}


def under(body: Vector, own: Vector | None) -> Vector:
    """A body under a user's head, or the initial one."""
    return np.concatenate([body, START[BODY:] if own is None else own])


def begun(own: Vector | None) -> Vector:
    """A user's own model, or the initial one."""
    return START if own is None else own


def fedavg(w: Vector, own: None, turn: Turn) -> tuple[Vector, None]:
    return turn.sgd(w), None


def frozen(w: Vector, own: None, turn: Turn) -> tuple[Vector, None]:
    return turn.sgd(w, frozen=1), None


def fedprox(w: Vector, own: None, turn: Turn) -> tuple[Vector, None]:
    return turn.sgd(w, extra=near(2.0, w)), None


def local(w: Vector, own: Vector | None, turn: Turn) -> tuple[Vector, Vector]:
    return w, turn.sgd(begun(own))


def ditto(w: Vector, own: Vector | None, turn: Turn) -> tuple[Vector, Vector]:
    return turn.sgd(w), turn.sgd(begun(own), extra=near(0.7, w))


def fedrep(body: Vector, own: Vector | None, turn: Turn) -> tuple[Vector, Vector]:
    """The head over the body that came, and then the body under the new head."""
    model = turn.sgd(turn.sgd(under(body, own), "head", frozen=1), "body", frozen=3)
    return model[:BODY], model[BODY:]


def fedper(body: Vector, own: Vector | None, turn: Turn) -> tuple[Vector, Vector]:
    model = turn.sgd(under(body, own))
    return model[:BODY], model[BODY:]


def fedbabu(body: Vector, own: None, turn: Turn) -> tuple[Vector, None]:
    return turn.sgd(under(body, None), "body", frozen=3)[:BODY], None


def lg_fedavg(warmup: int) -> Plain:
    """The head is common, and in a warm-up the body, too."""

    def step(w: Vector, own: Vector | None, turn: Turn) -> tuple[Vector, Vector | None]:
        model = turn.sgd(joined(w, own))
        return model, model[:BODY] if turn.number > warmup else None

    def joined(w: Vector, own: Vector | None) -> Vector:
        return np.concatenate([w[:BODY] if own is None else own, w[BODY:]])

    def merge(w: Vector, mean: Vector, number: int) -> Vector:
        return mean if number <= warmup else np.concatenate([w[:BODY], mean[BODY:]])

    return Plain(
        step,
        {"lg_fedavg_warmup_rounds": warmup},
        merge=merge,
        model=joined,
        shared=(lambda w: w) if warmup else (lambda w: w[BODY:]),
        adapted=lambda w, turn: turn.sgd(w, "body", frozen=3),
        tuned={"own": lambda w, own, turn: turn.sgd(joined(w, own), "body", frozen=3)},
        floats=0 if warmup else HEAD,  # in a warm-up more goes down than comes up
    )


def scaffold(server_lr: float) -> Plain:
    """Option II: what is common is x and c."""

    def step(common: Any, own: Vector | None, turn: Turn) -> tuple[Vector, Vector]:
        x, c = common
        c_i = np.zeros_like(c) if own is None else own
        shift, steps = torch.from_numpy(c - c_i), len(turn.batches("model"))
        y = turn.sgd(x, extra=lambda theta: (theta * shift).sum())
        new = c_i - c + (x - y) / (steps * turn.keys["lr"])
        return np.stack([y - x, new - c_i]), new

    def merge(common: Any, mean: Vector, number: int) -> Any:
        return common[0] + server_lr * mean[0], common[1] + mean[1] * 6 / 12  # six of twelve users

    return Plain(
        step,
        {"momentum": 0.0, "scaffold_server_lr": server_lr, "weighting": "uniform"},
        first=lambda: (START, np.zeros_like(START)),
        merge=merge,
        model=lambda common, own: common[0],
        shared=lambda common: common[0],
        floats=2 * (BODY + HEAD),
    )


def fedlc(w: Vector, own: None, turn: Turn) -> tuple[Vector, None]:
    counts = torch.bincount(turn.data[1], minlength=10).double()
    less = 0.7 / counts.sqrt().sqrt()  # infinite for a class without samples
    return turn.sgd(w, of=lambda features, outputs, y: F.cross_entropy(outputs - less, y)), None


def fedrod(w: Vector, own: Vector | None, turn: Turn) -> tuple[Vector, Vector]:
    """What it keeps is phi; the loss of (theta, psi) is -log n_y e^(g_y) / sum_c n_c e^(g_c)."""
    counts = torch.bincount(turn.data[1], minlength=10)

    def balanced(features: Tensor, outputs: Tensor, y: Tensor) -> Tensor:
        shares = counts * outputs.exp()
        return -(shares[torch.arange(len(y)), y] / shares.sum(1)).log().mean()

    head = turn.sgd(summed(w, own), "head", frozen=1)[BODY:]
    return turn.sgd(w, of=balanced), head - w[BODY:]


def summed(w: Vector, phi: Vector | None) -> Vector:
    """theta under psi + phi."""
    return w if phi is None else np.concatenate([w[:BODY], w[BODY:] + phi])


def mr_mtl(w: Vector, own: Vector | None, turn: Turn) -> tuple[Vector, Vector]:
    model = turn.sgd(begun(own), extra=near(0.7, w))
    return model, model


def feddyn(alpha: float) -> Plain:
    """What is common is theta and h; of twelve users six take part."""

    def step(common: Any, own: Vector | None, turn: Turn) -> tuple[Vector, Vector]:
        theta, _ = common
        g = np.zeros_like(theta) if own is None else own
        known, pull = torch.from_numpy(g), near(alpha, theta)
        new = turn.sgd(theta, extra=lambda x: pull(x) - (known * x).sum())
        return new, g - np.float32(alpha) * (new - theta)

    def merge(common: Any, mean: Vector, number: int) -> Any:
        theta, h = common
        h = h - alpha * 6 / 12 * (mean - theta)
        return (mean - h / alpha).astype(np.float32), h

    return Plain(
        step,
        {"feddyn_alpha": alpha, "weighting": "uniform"},
        first=lambda: (START, np.zeros_like(START)),
        merge=merge,
        model=lambda common, own: common[0],
        shared=lambda common: common[0],
    )


def fedala(eta: float, share: float, start: int) -> Plain:
    """A user keeps its head and weights, and whether it has learnt them; autograd has (5)."""

    def step(w: Vector, own: Any, turn: Turn) -> tuple[Vector, Any]:
        head, weights, turns = own or (w[BODY:], np.ones(HEAD, np.float32), 0)
        n = len(turn.data[1])
        drawn = generator(0, "samples of the weights", turn.number, turn.user)
        rows = drawn.permutation(n)[: int(share * n)]
        rng = generator(0, "weights", turn.number, turn.user)
        for batch in batches(rng, len(rows), [0, start, 1][min(turns, 2)], 10):
            free = torch.from_numpy(weights).requires_grad_()
            mine, common = torch.from_numpy(head), torch.from_numpy(w[BODY:])
            theta = torch.cat([torch.from_numpy(w[:BODY]), mine + (common - mine) * free])
            slope = torch.autograd.grad(loss_of(theta, turn.data, rows[batch]), free)[0]
            weights = (free.detach() - eta * slope).clamp(0, 1).numpy()
        model = turn.sgd(begin(w, (head, weights, turns)))
        return model, (model[BODY:], weights, turns + 1)

    def begin(w: Vector, own: Any) -> Vector:
        head, weights, _ = own or (w[BODY:], 1.0, 0)
        return np.concatenate([w[:BODY], head + (w[BODY:] - head) * weights]).astype(np.float32)

    return Plain(
        step,
        {"fedala_eta": eta, "fedala_share": share, "fedala_start_epochs": start},
        model=begin,
        adapted=lambda w, turn: turn.sgd(w),
        tuned={"own": lambda w, own, turn: turn.sgd(begin(w, own))},
    )


def moon(w: Vector, own: Vector | None, turn: Turn) -> tuple[Vector, Vector]:
    model, common, last = fresh(w), fresh(w), fresh(w if own is None else own)
    optimiser = optimiser_of(model, turn.keys)
    for batch in turn.batches("model"):
        x, y = turn.data[0][batch], turn.data[1][batch]
        z, z_glob, z_prev = (module[:3](x) for module in (model, common, last))
        e_glob, e_prev = (
            torch.exp((z * other).sum(1) / (z.norm(dim=1) * other.norm(dim=1)) / 0.3)
            for other in (z_glob, z_prev)
        )
        loss = F.cross_entropy(model[3](z), y)
        if own is not None:
            loss = loss - 2.0 * torch.log(e_glob / (e_glob + e_prev)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return flat(model), flat(model)


def feddbe(kappa: float, shift: float, mu: float) -> Plain:
    """What is common is the model and m, of which there is none in round 1."""

    def step(common: Any, own: Vector | None, turn: Turn) -> tuple[Any, Vector]:
        w, consensus = common
        model, running = fresh(w), torch.zeros(16)
        bias = torch.from_numpy(np.zeros(16, np.float32) if own is None else own)
        bias = bias.clone().requires_grad_()
        optimiser = optimiser_of(model, turn.keys)
        other = torch.optim.SGD([bias], shift * turn.keys["lr"])
        for batch in turn.batches("model"):
            z = model[:3](turn.data[0][batch])
            running = (1 - mu) * running.detach() + mu * z.mean(0)
            if consensus is not None:
                away = kappa / 2 * (running - torch.from_numpy(consensus)).square().mean()
                loss = F.cross_entropy(model[3](z + bias), turn.data[1][batch]) + away
            else:
                loss = F.cross_entropy(model[3](z), turn.data[1][batch])
            optimiser.zero_grad()
            other.zero_grad()
            loss.backward()
            optimiser.step()
            other.step()
        sent = np.concatenate([flat(model), running.detach().numpy()])
        return sent, bias.detach().numpy().copy()

    def merge(common: Any, mean: Vector, number: int) -> Any:
        means = mean[BODY + HEAD :] if number == 1 else common[1]
        return mean[: BODY + HEAD].astype(np.float32), means.astype(np.float32)

    def model(common: Any, own: Vector | None) -> Vector:
        """A shift of the features is one of a linear head's biases."""
        w = np.array(common[0])
        if own is not None:
            w[-10:] += w[BODY:-10].reshape(10, 16) @ own
        return w

    return Plain(
        step,
        {"feddbe_kappa": kappa, "feddbe_shift": shift, "feddbe_mu": mu},
        first=lambda: (START, None),
        merge=merge,
        model=model,
        adapted=lambda common, turn: model(common, step(common, None, turn)[1]),
        tuned={"own": lambda common, own, turn: model(common, step(common, own, turn)[1])},
        shared=lambda common: common[0],
        floats=0,  # m goes up once, and down ever after
    )


def pfedme(momentum: float, beta: float) -> Plain:
    """theta goes after three steps a batch, and w after theta."""
    lam, steps = 3.0, 3

    def step(start: Vector, own: Vector | None, turn: Turn) -> tuple[Vector, Vector]:
        w = theta = start
        keys = {"lr": 0.1, "momentum": momentum}
        for batch in turn.batches("model"):
            theta = plain_sgd(theta, turn.data, [batch] * steps, keys, near(lam, w))
            w = w - turn.keys["lr"] * lam * (w - theta)
        return w, theta

    keys = {"pfedme_lambda": lam, "pfedme_steps": steps, "pfedme_personal_lr": 0.1}
    return Plain(
        step,
        {**keys, "pfedme_beta": beta, "momentum": momentum},
        merge=lambda w, mean, number: (1 - beta) * w + beta * mean,
        model=lambda w, own: begun(own),
        tuned={"own": lambda w, own, turn: step(w, own, turn)[1]},
    )


def optimiser_of(module: nn.Module, keys: Mapping[str, Any]) -> torch.optim.SGD:
    """SGD with weight decay on what is no bias."""
    groups: list[dict[str, Any]] = [
        {"params": [p for p in module.parameters() if p.dim() > 1], "weight_decay": DECAY},
        {"params": [p for p in module.parameters() if p.dim() == 1]},
    ]
    return torch.optim.SGD(groups, lr=keys["lr"], momentum=keys["momentum"])


def apfl(adaptive: bool, momentum: float) -> Plain:
    """Autograd differentiates f(alpha v + (1 - alpha) w) by v and by alpha."""
    first = (START, 0.3)

    def step(common: Vector, own: Any, turn: Turn) -> tuple[Vector, Any]:
        v, alpha = own or first
        left, right = fresh(common), fresh(v)
        share = torch.tensor(float(alpha), requires_grad=True)
        optimisers = [optimiser_of(module, turn.keys) for module in (left, right)]
        for t, batch in enumerate(turn.batches("model")):
            for optimiser in optimisers:
                optimiser.zero_grad()
            share.grad = None
            pairs = zip(right.named_parameters(), left.parameters(), strict=True)
            mixed = {n: share * p + (1 - share) * q.detach() for (n, p), q in pairs}
            x, y = turn.data[0][batch], turn.data[1][batch]
            F.cross_entropy(functional_call(right, mixed, (x,)), y).backward()
            F.cross_entropy(left(x), y).backward()
            for optimiser in optimisers:
                optimiser.step()
            if adaptive and t == 0:
                assert share.grad is not None
                share.data = (share.data - turn.keys["lr"] * share.grad).clamp(0, 1)
        return flat(left), (flat(right), float(share.detach()))

    def model(w: Vector, own: Any) -> Vector:
        v, alpha = own or first
        return np.asarray(alpha * v + (1 - alpha) * w, np.float32)

    keys = {"apfl_alpha": 0.3, "apfl_adaptive_alpha": adaptive, "momentum": momentum, "lr": 0.1}
    tuned = {"own": lambda w, own, turn: model(w, step(w, own, turn)[1])}
    return Plain(step, keys, model=model, tuned=tuned)


NAMES = [(name, p.shape) for name, p in fresh().named_parameters()]
LINEAR = 650
"""Parameters of softmax regression."""


def loss_of(theta: Tensor, data: Data, rows: Any) -> Tensor:
    """The loss of the run's network, or of softmax regression if theta is that short."""
    x, y = data[0][rows].to(theta.dtype), data[1][rows]
    if len(theta) == LINEAR:
        return F.cross_entropy(x.flatten(1) @ theta[:640].view(10, 64).T + theta[640:], y)
    pieces = torch.split(theta, [s.numel() for _, s in NAMES])
    named = {n: p.view(s) for (n, s), p in zip(NAMES, pieces, strict=True)}
    return F.cross_entropy(functional_call(fresh(), named, (x,)), y)


def gradient(theta: Tensor, data: Data, rows: Any) -> Tensor:
    theta = theta.detach().requires_grad_()
    return torch.autograd.grad(loss_of(theta, data, rows), theta)[0]


def product(theta: Tensor, data: Data, rows: Any, g: Tensor, how: str) -> Tensor:
    """The Hessian times g: by double backpropagation, by differences, or 0."""
    if how == "exact":
        return torch.autograd.functional.hvp(lambda p: loss_of(p, data, rows), theta, g)[1]
    if how == "hf":
        ahead, behind = (gradient(theta + sign * 0.01 * g, data, rows) for sign in (1, -1))
        return (ahead - behind) / 0.02
    return torch.zeros_like(g)


def perfedavg(variant: str, alpha: float = 0.2, how: str = "") -> Plain:
    """Algorithm 1 in double precision; evaluated after two steps with all the data."""

    def step(w: Vector, own: None, turn: Turn) -> tuple[Vector, None]:
        shapes = [s for _, s in NAMES] if len(w) != LINEAR else [(10, 64), (10,)]
        weights = torch.cat([torch.full((int(np.prod(s)),), float(len(s) > 1)) for s in shapes])
        theta, m = torch.from_numpy(w).double(), torch.zeros(len(w))
        streams = [turn.batches(f"perfedavg {name}") for name in ("D", "D'", "D''")]
        for one, two, three in zip(*streams, strict=True):
            meta = gradient(theta - alpha * gradient(theta, turn.data, one), turn.data, two)
            meta = meta - alpha * product(theta, turn.data, three, meta, how or variant)
            m = turn.keys["momentum"] * m + meta + DECAY * weights * theta
            theta = theta - turn.keys["lr"] * m
        return theta.numpy(), None

    keys = {"perfedavg_variant": variant, "perfedavg_alpha": alpha, "perfedavg_delta": 0.01}
    return Plain(step, keys, adapted=lambda w, turn: descended(w, turn.data, alpha, turn.epochs))


def descended(w: Vector, data: Data, rate: float, steps: int) -> Vector:
    """Gradient steps with all the data."""
    theta = torch.from_numpy(w.astype(np.float32))
    for _ in range(steps):
        theta = theta - rate * gradient(theta, data, slice(None))
    return theta.numpy()


def with_adam() -> Plain:
    """FedAvg, with Adam at the server: what is common is the model and both moments."""
    keys = ServerKeys("adam", server_lr=0.02, server_beta2=0.9)

    def merge(common: Any, mean: Vector, number: int) -> Any:
        before, w = server_step(keys, common[0], mean, common[1])
        return w, before

    return Plain(
        lambda common, own, turn: fedavg(common[0], own, turn),
        {"server_optimizer": "adam", "server_lr": 0.02, "server_beta2": 0.9},
        first=lambda: (START, {"m": 0 * START, "v": np.full_like(START, keys.server_tau**2)}),
        merge=merge,
        model=lambda common, own: common[0],
        shared=lambda common: common[0],
    )


FEDAVG = Plain(
    fedavg,
    adapted=lambda w, turn: turn.sgd(w, "fine-tune", frozen=1),
    tuned={
        "ft": lambda w, own, turn: turn.sgd(w, "fine-tune", frozen=1),
        "ft-all": lambda w, own, turn: turn.sgd(w, "fine-tune"),
    },
)
PARTED = Plain(
    fedrep,
    model=under,
    first=START[:BODY].copy,
    adapted=lambda body, turn: turn.sgd(under(body, None), "head", frozen=1),
    tuned={"own": lambda body, own, turn: turn.sgd(under(body, own), "head", frozen=1)},
    floats=BODY,
)
SCHEDULES: dict[str, dict[str, Any]] = {
    "cosine": {"lr_schedule": "cosine", "lr_end": 0.01},
    "step": {"lr_schedule": "step", "lr_step_rounds": 2, "lr_factor": 0.3},
}
TABLE: dict[str, Plain] = {
    "fedavg": FEDAVG,
    "fedavg, users alike": replace(FEDAVG, keys={"weighting": "uniform"}),
    "fedavg, first layer frozen": Plain(
        frozen,
        {"frozen": "fc1"},
        shared=lambda w: np.concatenate([w[BODY:], w[:BODY]]),
        floats=HEAD,
    ),
    "fedavg, cosine": replace(FEDAVG, keys=SCHEDULES["cosine"]),
    "fedavg, lr step": replace(FEDAVG, keys=SCHEDULES["step"]),
    "fedavg, adam at the server": with_adam(),
    "fedprox": replace(FEDAVG, step=fedprox, keys={"fedprox_mu": 2.0}),
    "local": Plain(
        local,
        model=lambda w, own: begun(own),
        shared=lambda w: np.empty(0),
        tuned={"own": lambda w, own, turn: turn.sgd(begun(own))},
        floats=0,
    ),
    "fedrep": PARTED,
    "fedrep, users alike": replace(PARTED, keys={"weighting": "uniform"}),
    "fedper": replace(PARTED, step=fedper),
    "fedbabu": replace(
        PARTED,
        step=fedbabu,
        model=lambda body, own: under(body, None),
        adapted=lambda body, turn: turn.sgd(under(body, None), "model"),
        tuned={
            "ft": lambda body, own, turn: turn.sgd(under(body, None), "head", frozen=1),
            "ft-all": lambda body, own, turn: turn.sgd(under(body, None), "model"),
        },
    ),
    "lg-fedavg": lg_fedavg(0),
    "lg-fedavg, warm-up": lg_fedavg(2),
    "ditto": Plain(
        ditto,
        {"ditto_lambda": 0.7, "ditto_epochs": EPOCHS},
        model=lambda w, own: begun(own),
        adapted=lambda w, turn: turn.sgd(w, extra=near(0.7, w)),
        tuned={"own": lambda w, own, turn: turn.sgd(w if own is None else own, extra=near(0.7, w))},
    ),
    "apfl": apfl(adaptive=False, momentum=0.5),
    "apfl, adaptive": apfl(adaptive=True, momentum=0.5),
    "pfedme, beyond the mean": pfedme(0.0, 1.5),
    "pfedme, momentum": pfedme(0.5, 1.0),
    "feddyn": feddyn(0.5),
    "fedlc": replace(FEDAVG, step=fedlc, keys={"fedlc_tau": 0.7}),
    "moon": replace(FEDAVG, step=moon, keys={"moon_mu": 2.0, "moon_tau": 0.3}),
    "fedala": fedala(3.0, 0.7, 3),
    "feddbe": feddbe(5.0, 2.0, 0.6),
    "fedrod": Plain(fedrod, {"fedrod_epochs": EPOCHS}, model=summed),
    "mr-mtl": Plain(
        mr_mtl,
        {"mr_mtl_lambda": 0.7},
        model=lambda w, own: begun(own),
        adapted=lambda w, turn: turn.sgd(w, extra=near(0.7, w)),
        tuned={"own": lambda w, own, turn: turn.sgd(w if own is None else own, extra=near(0.7, w))},
    ),
    "scaffold, server's own rate": scaffold(0.7),
    "perfedavg": perfedavg("exact"),
    "perfedavg, fo": perfedavg("fo"),
    "perfedavg, hf": perfedavg("hf"),
}
"""A name in the table begins with the algorithm's."""
