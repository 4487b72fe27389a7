"""GPFL against a plain loop of torch's own layers, and where it must equal FedPer."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corsage.clients import gpfl
from corsage.core.errors import ConfigError, ModelError
from tests.support.plain_steps import BODY, START, under
from tests.support.reference import (
    DECAY,
    Vector,
    chosen,
    examples,
    flat,
    fresh,
    run,
    user_batches,
    users_data,
)

LAMBDA, MU, WIDTH, CLASSES = 0.3, 0.05, 16, 10
Data = tuple[Tensor, Tensor]


class Guide(nn.Module):
    """Points and valve, of torch's own layers."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.points = nn.Embedding(CLASSES, WIDTH)
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.LayerNorm(WIDTH)) for _ in range(2)
        )
        arrays = [torch.tensor(a) for a in (state.points, state.weights, state.vectors)]
        with torch.no_grad():
            self.points.weight.copy_(arrays[0])
            for net, weight, vectors in zip(self.nets, *arrays[1:], strict=True):
                layers: Any = net
                layers[0].weight.copy_(weight)
                for own, came in zip(
                    (layers[0].bias, *layers[2].parameters()), vectors, strict=True
                ):
                    own.copy_(came)

    def forward(self, f: Tensor, context: Tensor) -> Tensor:
        gamma, beta = (net(context) for net in self.nets)
        return torch.relu((gamma + 1) * f + beta)


def trained(whole: Vector, guide: Guide, mine: Data, steps: list[Any]) -> tuple[Vector, Guide]:
    """A user's round: three losses at once, two optimisers."""
    came, model, own = guide, fresh(whole), deepcopy(guide)
    sides: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": DECAY},
        {"params": [p for p in model.parameters() if p.dim() == 1]},
        {"params": list(own.parameters()), "weight_decay": MU},
    ]
    optimiser = torch.optim.SGD(sides, lr=0.05, momentum=0.5)
    mine_context, every = contexts(came, mine[1])
    for batch in steps:
        x, y = mine[0][batch], mine[1][batch]
        f = model[:3](x)
        common, v = own(f, every), own.points.weight
        angles = F.cosine_similarity(common[:, None], v[None], dim=2)
        away = sum(
            torch.linalg.norm(a - came.points.weight[k]) for a, k in zip(common, y, strict=True)
        )
        loss = F.cross_entropy(model[3](own(f, mine_context)), y) + F.cross_entropy(angles, y)
        optimiser.zero_grad()
        (loss + LAMBDA * away / len(y)).backward()
        optimiser.step()
    return flat(model), own


def contexts(guide: Guide, y: Tensor) -> tuple[Tensor, Tensor]:
    """p_i, the mean point of a user's samples, and g."""
    with torch.no_grad():
        return guide.points(y).mean(0), guide.points.weight.mean(0)


def test_gpfl_is_its_algorithm() -> None:
    keys: dict[str, Any] = {"gpfl_lambda": LAMBDA, "gpfl_mu": MU, "size_sigma": 0.8}
    strategy, result = run("gpfl", weighting="examples", **keys)
    data, body = users_data(size_sigma=0.8), START[:BODY]
    guide = Guide(strategy.initial(strategy.job.network))
    heads: dict[str, Vector] = dict.fromkeys(data.users, START[BODY:])
    for number in range(1, 5):
        bodies, guides, sizes = [], [], []
        for user in chosen(strategy, number):
            mine, steps = examples(data, user), user_batches(data, user, "model", number, 1)
            whole, own = trained(under(body, heads[user]), guide, mine, steps)
            heads[user] = whole[BODY:]
            bodies.append(whole[:BODY])
            guides.append([p.detach() for p in own.parameters()])
            sizes.append(len(mine[1]))
        body = np.average(bodies, axis=0, weights=sizes).astype(np.float32)
        for p, *each in zip(guide.parameters(), *guides, strict=True):
            p.data = torch.from_numpy(np.average(each, axis=0, weights=sizes).astype(np.float32))
    end = Guide(strategy.state)
    assert np.allclose(strategy.state.body, body, atol=2e-5)
    for one, two in zip(end.parameters(), guide.parameters(), strict=True):
        assert torch.allclose(one, two, atol=5e-5)
    found, losses = result.json()[0], []
    for user, accuracy in found["per_user"].items():
        x, y = (torch.tensor(a) for a in (data[user].x_test, data[user].y_test))
        model, x = fresh(under(body, heads[user])), (x - data.shift) * data.scale
        context = contexts(guide, examples(data, user)[1])[0]
        with torch.no_grad():
            out = model[3](guide(model[:3](x.float()), context))
        assert accuracy == pytest.approx(float((out.argmax(1) == y).float().mean()), abs=1e-6)
        losses.append(float(F.cross_entropy(out, y.long())))
    assert found["loss"]["mean"] == pytest.approx(np.mean(losses), abs=1e-5)


def test_without_valve_and_guidance_it_is_fedper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpfl, "passed", lambda features, scale, shift: features)
    monkeypatch.setattr(F, "normalize", lambda common: 0 * common)
    _, ours = run("gpfl", gpfl_lambda=0.0)
    _, fedper = run("fedper")
    assert ours.json()[0]["per_user"] == fedper.json()[0]["per_user"]
    assert ours.json()[0]["loss"]["mean"] == pytest.approx(
        fedper.json()[0]["loss"]["mean"], abs=1e-6
    )


def test_what_it_has_no_use_for_is_refused() -> None:
    with pytest.raises(ModelError, match=r"gpfl: .* a head and nothing else; take model=mlp"):
        run("gpfl", model="linear")


@pytest.mark.parametrize("name", ["fedem", "fedpac", "gpfl"])
def test_keys_of_a_loss_that_it_has_not_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"label-smoothing=0.1: not for strategy={name}: "):
        run(name, label_smoothing=0.1)
    if name == "gpfl":
        with pytest.raises(ConfigError, match="mixed-precision=bf16: not for strategy=gpfl: "):
            run(name, mixed_precision="bf16")
