"""Parts of a model by pattern: whose what is, heads found by running, and modules cut in two."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from corsage.core.configuration.key_groups import TrainKeys
from corsage.core.errors import ModelError
from corsage.networks import local_training as doors
from corsage.networks.batches import Examples
from corsage.networks.network import Network
from corsage.networks.parameter_groups import Words
from corsage.networks.training import batches

X = torch.linspace(-1, 1, 5 * 6).reshape(5, 6)


class Deep(nn.Module):
    """Layers that are defined in another order than they run in."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc3, self.fc1, self.fc2 = nn.Linear(7, 4), nn.Linear(6, 8), nn.Linear(8, 7)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(self.fc2(self.norm(self.fc1(x)).relu()).relu())


class TwoOuts(Deep):
    """Two linear layers add up to the output."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(self.fc2(self.fc1(x)).relu()) + self.fc1(x)[:, :4]


class Counting(Deep):
    """Counters of its own: one that is moved, one that is replaced."""

    count: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("table", torch.arange(6), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.count += 1
            self.seen = self.seen + len(x)
        return super().forward(x[:, self.table])


def network(make: Callable[[], nn.Module] = Deep, head: str = "", **more: str) -> Network:
    return Network(make(), Words(head, **more), X)


def names(net: Network, part: slice) -> set[str]:
    return {b.name for b in net.blocks_of(part)}


def both(*modules: str) -> set[str]:
    return {f"{name}.{kind}" for name in modules for kind in ("weight", "bias")}


def test_the_head_is_the_last_linear_layer_that_runs() -> None:
    net = network()
    assert names(net, net.head) == both("fc3") and net.linear_head and net.cacheable
    assert names(net, net.body) == both("fc1", "fc2", "norm")


def test_an_ambiguous_head_is_refused() -> None:
    with pytest.raises(ModelError, match="the output is not made of fc1"):
        network(TwoOuts)
    late = nn.Sequential(nn.Linear(6, 8), nn.Unflatten(1, (8, 1)), nn.Conv1d(8, 4, 1), nn.Flatten())
    with pytest.raises(ModelError, match="ambiguous: 2 runs after 0"):
        Network(late, "", X)
    assert Network(late, "2", X).split_exact is False


@pytest.mark.parametrize(
    ("keys", "own"),
    [
        ({"head": "fc2,fc3"}, both("fc2", "fc3")),
        ({"head": "fc[23]"}, both("fc2", "fc3")),
        ({"personal": "norm.*"}, both("norm")),
        ({"personal": "*.bias"}, {f"{n}.bias" for n in ("fc1", "fc2", "fc3", "norm")}),
        ({"shared": "fc1"}, both("fc2", "fc3", "norm")),
        ({"shared": "*,!fc3"}, both("fc3")),
        ({"shared": "fc1,norm", "personal": "fc2,fc3"}, both("fc2", "fc3")),
        ({"frozen": "fc1,norm"}, both("fc3")),
        ({"frozen": "fc1", "personal": "norm"}, both("norm")),
        ({"personal": "@LayerNorm"}, both("norm")),
        ({"also": "@LayerNorm"}, both("norm", "fc3")),
    ],
)
def test_patterns_say_what_is_a_users_own(keys: dict[str, str], own: set[str]) -> None:
    net = network(**keys)
    fixed = set(net.vector.fixed.tensors)
    assert names(net, net.head) == own
    assert names(net, net.body) == both("fc1", "fc2", "fc3", "norm") - own - fixed
    assert not fixed or fixed == net.vector.fixed.arrays.keys() == both("fc1", "norm") & fixed
    assert torch.equal(net(X), Deep()(X))


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"head": "fc9"}, r"head=fc9: the model has no such module.*fc1 \(Linear\)"),
        ({"personal": "bn*"}, r"personal=bn\*: the model has no such module"),
        ({"frozen": "*"}, "nothing is left to train"),
        ({"personal": "*"}, r"personal=\*: names everything"),
        ({"shared": "*"}, r"shared=\*: names everything"),
        ({"shared": "fc1,!fc1"}, "names nothing"),
        ({"personal": "fc2", "frozen": "fc*"}, r"both name fc2.bias, fc2.weight; .*frozen=.*!fc2"),
        ({"head": "fc3", "frozen": "fc3.bias"}, "both name fc3.bias"),
        ({"shared": "fc1", "personal": "fc2"}, "neither names fc3.bias"),
        ({"head": "fc3", "personal": "norm"}, "leave one of them out"),
        ({"frozen": "fc3"}, "takes the whole head"),
    ],
)
def test_patterns_that_cannot_be_meant_are_one_line(keys: dict[str, str], why: str) -> None:
    with pytest.raises(ModelError, match=why) as caught:
        network(**keys)
    assert "\n" not in str(caught.value)


def test_a_head_of_several_modules_is_cut_off() -> None:
    net = network(head="fc2,fc3")
    assert net.split_exact and net.cacheable and not net.linear_head
    assert net.features(X).shape == (5, 8)
    assert torch.equal(net.logits(net.features(X)), net(X))


def test_what_is_not_a_suffix_is_not_cut_off() -> None:
    for pattern, why in {"norm": "follows personal norm", "norm,fc3": "comes after it"}.items():
        net = network(personal=pattern)
        assert not net.split_exact and not net.cacheable and why in net.why
    layers = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 7), nn.Linear(7, 4)]
    net = Network(nn.Sequential(*layers), "3,4", X)
    assert net.why.endswith(
        "BatchNorm1d (1) in front of it changes in training; set batch-norm=frozen"
    )


def orders_of(sizes: list[int], epochs: int) -> list[Any]:
    return [batches(np.random.default_rng(u), n, epochs, 3) for u, n in enumerate(sizes)]


def examples(sizes: list[int]) -> Examples:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(sum(sizes), 6)).astype(np.float32))
    return Examples(x, torch.from_numpy(rng.integers(0, 4, sum(sizes))), np.array(sizes))


KEYS = TrainKeys(lr=0.1, momentum=0.5, weight_decay=0.01)


def plain_sgd(module: nn.Module, data: tuple[Tensor, Tensor], order: Any, own: set[str]) -> Any:
    """torch.optim.SGD on some of a module's parameters."""
    for name, p in module.named_parameters():
        p.requires_grad_(name in own)
    trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
    weights = [p for n, p in trained.items() if not n.endswith("bias")]
    decay = [{"params": weights, "weight_decay": KEYS.weight_decay}] * bool(weights)
    rest = [{"params": [p for n, p in trained.items() if n.endswith("bias")]}]
    optimiser = torch.optim.SGD([*decay, *rest], lr=KEYS.lr, momentum=KEYS.momentum)
    for rows in order:
        optimiser.zero_grad()
        F.cross_entropy(module(data[0][rows]), data[1][rows]).backward()
        optimiser.step()
    return {n: p.detach().numpy() for n, p in module.named_parameters() if n in own}


@pytest.mark.parametrize(
    "keys",
    [{"head": "fc2,fc3"}, {"personal": "norm"}, {"personal": "*.bias", "frozen": "fc1.weight"}],
)
def test_own_parts_train_as_torch_trains_them(keys: dict[str, str]) -> None:
    """Over a frozen body, on cached features or through the whole model."""
    net, data, orders = network(**keys), examples([7, 5]), orders_of([7, 5], 2)
    heads = np.tile(net.initial[net.head], (2, 1))
    got = doors.train_heads(net, net.initial[net.body], heads, data, orders, KEYS)
    for u in range(2):
        module = Network(Deep(), "", X).module
        wanted = plain_sgd(module, data.user(u), orders[u], names(net, net.head))
        for name, values in net.named(got[u], net.head).items():
            np.testing.assert_allclose(values, wanted[name], atol=2e-6)


def test_what_trains_behind_a_frozen_front_is_what_trains_on_samples() -> None:
    net, data, orders = network(frozen="fc1,norm"), examples([7, 5]), orders_of([7, 5], 2)
    assert net.rear is not net and names(net, net.whole) == both("fc2", "fc3")
    features = net.rear.in_front_of(data.x)
    got = doors.train_models(net.rear, net.initial, data.over(features), orders, KEYS)
    wanted = doors.train_models(net, net.initial, data, orders, KEYS)
    np.testing.assert_allclose(got, wanted, atol=1e-6)
    plain = plain_sgd(Deep(), data.user(0), orders[0], both("fc2", "fc3"))
    for name, values in net.named(got[0]).items():
        np.testing.assert_allclose(values, plain[name], atol=2e-6)


def test_a_frozen_front_of_layers_in_a_row_leaves_kernels_that_train_users_together() -> None:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.5))
    net = Network(
        nn.Sequential(backbone, nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 4)), Words(frozen="0"), X
    )
    assert net.rear.stackable and not net.stackable and net.rear.cacheable
    net.train()
    assert torch.equal(net(X), net.module.eval()(X))  # what is frozen as a whole draws nothing


def test_frozen_statistics_stay_and_others_move() -> None:
    module = nn.Sequential(
        nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)
    )
    net = Network(module, Words(frozen="0,1"), X)
    before = module[1].running_mean.clone()
    net.train()
    net(X + 3.0)
    assert torch.equal(module[1].running_mean, before) and module[3].running_mean.abs().sum() > 0
    assert net.rear is not net and names(net, net.whole) >= {
        "3.running_mean",
        "3.num_batches_tracked",
    }


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [("normed", "1.running_*"), ("normed", "1.num_*"), ("own", "count"), ("own", "fc1,seen")],
)
def test_what_every_training_pass_moves_is_not_frozen_by_itself(kind: str, pattern: str) -> None:
    """It would go from user to user, with no word said."""
    normed = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))
    with pytest.raises(ModelError, match=r"frozen=.*: training passes change .*!") as caught:
        Network(normed if kind == "normed" else Counting(), Words(frozen=pattern), X)
    assert "\n" not in str(caught.value)


def test_counters_travel_and_constants_stay() -> None:
    net = network(Counting)
    assert "table" in net.vector.fixed.tensors and "table" not in net.vector.fixed.arrays
    net.train()
    net(X)
    net(X)
    first = net.get(net.whole)
    assert net.named(first)["count"] == np.int64(2) and (net.named(first)["seen"] == 10.0).all()
    net.set(net.whole, net.initial)  # another user's
    net(X)
    assert net.named(net.get(net.whole))["count"] == np.int64(1)
    net.set(net.whole, first)
    assert net.module.count == 2 and net.module.count.dtype == torch.int64
    assert torch.equal(net.module.seen, torch.tensor([10.0, 10.0]))


def test_what_moves_though_it_is_fixed_is_named() -> None:
    net = network(frozen="fc1")
    net.vector.fixed.check()
    with torch.no_grad():
        net.module.fc1.weight.add_(1.0)
    with pytest.raises(ModelError, match=r"fc1\.weight changes in training"):
        net.vector.fixed.check()


def test_fingerprints_tell_frozen_parts_apart() -> None:
    def mark(shift: float, **keys: str) -> str:
        module = Deep()
        with torch.no_grad():
            module.fc1.weight[0, 0] += shift
            module.fc2.weight[0, 0] += 1.0
        return Network(module, Words(**keys), X).vector.fixed.fingerprint

    assert mark(0.0) == "" and len(mark(0.0, frozen="fc1")) == 32
    assert mark(0.0, frozen="fc1") == mark(0.0, frozen="fc1.*") != mark(1e-6, frozen="fc1")


def test_a_whole_state_loads_strictly() -> None:
    net = network(Counting, frozen="fc1")
    state = net.vector.whole_state(net.named(net.initial))
    found = {name: torch.from_numpy(np.asarray(values)) for name, values in state.items()}
    Counting().load_state_dict(found, strict=True)
