"""A torch model as a flat vector with a body and a head."""

import numpy as np
import pytest
import torch
from torch import nn

from corsage.core.configuration.key_groups import ModelKeys
from corsage.core.errors import ModelError
from corsage.networks.batches import Examples
from corsage.networks.build import build_network
from corsage.networks.network import Network
from corsage.networks.user_scores import outputs_of_heads, outputs_of_models

X = torch.linspace(-1, 1, 3 * 6).reshape(3, 6)


def seq(*layers):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), *layers, nn.Linear(8, 4))


def network(*layers, head=""):
    return Network(seq(*layers), head, X)


class Residual(nn.Module):
    """What follows the head is not a layer."""

    def __init__(self, twice=False, scale=1.0):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(6, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.twice, self.scale = twice, scale

    def forward(self, x):
        h = self.fc3(self.fc2(self.fc1(x).relu()).relu())
        return self.fc3(h) if self.twice else h * self.scale


class FunctionalDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 64), nn.Linear(64, 4)

    def forward(self, x):
        return self.two(nn.functional.dropout(self.one(x), 0.3, self.training))


class Centred(nn.Module):
    """A body whose features depend on the other samples of the batch."""

    def forward(self, x):
        return x - x.mean(0)


def test_layout_is_body_then_head_and_parameters_are_views():
    net = network(nn.ReLU())
    assert (net.body, net.head) == (slice(0, 56), slice(56, 92))
    net.flat.fill_(2.0)
    assert all((p == 2.0).all() for p in net.module.parameters())
    with torch.no_grad():
        net.module[0].weight.fill_(3.0)
    assert (net.flat[:48] == 3.0).all()


def test_initial_is_the_modules_own():
    module = seq()
    wanted = torch.cat([p.detach().flatten() for p in module.parameters()]).numpy()
    np.testing.assert_array_equal(Network(module, "", X).initial, wanted)


def test_head_in_the_middle_of_the_module_order_is_last_in_the_vector():
    module = Residual()
    net = Network(module, "fc1", X)
    assert list(net.named(net.get(net.head), net.head)) == ["fc1.weight", "fc1.bias"]
    assert net.head == slice(40, 68)
    assert not net.split_exact


def test_backward_accumulates_into_grad():
    net = network(nn.Tanh())
    net(X).sum().backward()
    np.testing.assert_allclose(net.grad[net.head][-4:].numpy(), 3.0)
    assert net.grad[net.body].abs().sum() > 0


def test_only_the_active_part_requires_gradients():
    net = network(nn.ReLU())
    net.activate(net.head)
    assert [b.name for b in net.blocks if b.tensor.requires_grad] == ["2.weight", "2.bias"]
    net(X).sum().backward()
    assert not net.grad[net.body].any() and net.grad[net.head].any()
    net.activate(net.whole)
    assert all(b.tensor.requires_grad for b in net.blocks)


def test_decay_is_for_weights_only():
    net = network(nn.BatchNorm1d(8))
    decay = net.named(net.decay.numpy())
    assert {name for name, d in decay.items() if d.all()} == {"0.weight", "1.weight", "2.weight"}
    assert not any(d.any() for name, d in decay.items() if "weight" not in name)


def test_named_and_flatten_are_inverse():
    net = network(nn.ReLU())
    flat = np.arange(92, dtype=np.float32)
    named = net.named(flat)
    assert named["2.weight"].shape == (4, 8)
    np.testing.assert_array_equal(net.flatten(named), flat)
    np.testing.assert_array_equal(net.flatten(named, net.head), flat[56:])
    assert set(net.named(flat[56:], net.head)) == {"2.weight", "2.bias"}


def test_flatten_names_what_is_wrong():
    net = network()
    named = net.named(net.initial)
    with pytest.raises(ModelError, match=r"1\.bias is missing"):
        net.flatten({k: v for k, v in named.items() if k != "1.bias"})
    with pytest.raises(ModelError, match=r"0\.weight has shape \(2, 2\), not \(8, 6\)"):
        net.flatten(named | {"0.weight": np.zeros((2, 2))})


def test_set_refuses_another_models_parameters():
    with pytest.raises(ModelError, match="another model"):
        network().set(slice(0, 56), np.zeros(55, np.float32))


def test_get_is_a_copy():
    net = network()
    copy = net.get(net.head)
    net.set(net.head, np.zeros(36, np.float32))
    np.testing.assert_array_equal(copy, net.initial[net.head])


def test_head_on_features_is_the_model():
    for net in (network(nn.ReLU()), Network(Residual(), "fc3", X), Network(Residual(), "", X)):
        assert net.split_exact and net.cacheable and net.linear_head and not net.why
        assert torch.equal(net.logits(net.features(X)), net(X))


def test_head_may_be_a_nested_module():
    inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    net = Network(nn.Sequential(nn.Linear(6, 8), nn.Sequential(nn.ReLU(), inner)), "1.1", X)
    assert net.split_exact and net.cacheable and not net.linear_head
    assert net.head.stop - net.head.start == 108


def test_linear_model_has_an_empty_body():
    net = build_network(ModelKeys(model="linear"), (2, 3), 4, 0)
    assert net.body == slice(0, 0) and net.get(net.body).shape == (0,)
    x = torch.rand(5, 2, 3)
    assert torch.equal(net.features(x), x.flatten(1))
    bare = Network(nn.Linear(6, 4), "", X)
    assert bare.split_exact and bare.body == slice(0, 0) and torch.equal(bare.features(X), X)


@pytest.mark.parametrize(
    ("module", "head", "why"),
    [
        (nn.Sequential(nn.Linear(6, 4), nn.Softmax(1)), "", "follows"),
        (nn.Sequential(nn.Linear(6, 4), nn.ReLU()), "", "follows"),
        (Residual(scale=2.0), "", "follows"),
        (Residual(twice=True), "", "2 times"),
    ],
)
def test_what_follows_the_head_is_seen(module, head, why):
    net = Network(module, head, X)
    assert not net.split_exact and not net.cacheable and why in net.why


def test_a_relu_after_positive_logits_is_seen():
    module = nn.Sequential(nn.Linear(6, 4), nn.ReLU())
    nn.init.constant_(module[0].bias, 100.0)
    assert not Network(module, "", X).split_exact


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (nn.Dropout(0.5), "Dropout"),
        (nn.BatchNorm1d(8), "BatchNorm1d"),
        (Centred(), "mixes"),
    ],
)
def test_bodies_that_cannot_be_cached(layer, why):
    net = network(layer)
    assert net.split_exact and not net.cacheable and why in net.why


def test_a_dropout_of_nothing_does_not_hinder_caching():
    net = network(nn.Dropout(0.0))
    assert net.cacheable and not net.stochastic


def test_functional_dropout_is_seen_by_numbers():
    net = Network(FunctionalDropout(), "", X)
    assert not net.cacheable and "random" in net.why and net.stochastic


def test_dropout_in_the_head_does_not_hinder_caching():
    head = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 4))
    net = Network(nn.Sequential(nn.Linear(6, 8), head), "1", X)
    assert net.cacheable and net.stochastic


def test_a_head_that_the_body_uses_is_not_taken_apart_from_it():
    """Under another head the features are others: no head is solved or judged on features alone."""
    module = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    module[0].weight = module[1].weight
    net = Network(module, "1", X)
    assert not net.cacheable and "parameters of the head" in net.why and not net.linear_head
    rows = np.random.default_rng(0).normal(size=(2, net.whole.stop)).astype(np.float32)
    rows[:, net.body] = rows[0, net.body]
    data = Examples(X[[0, 1, 2, 0]], torch.zeros(4, dtype=torch.long), np.array([2, 2]))
    found = outputs_of_heads(net, rows[0, net.body], rows[:, net.head], data)
    assert torch.equal(found, outputs_of_models(net, rows, data))


def test_inspection_leaves_no_trace():
    module = seq(nn.BatchNorm1d(8), nn.Dropout(0.5))
    before = {k: v.clone() for k, v in module.state_dict().items()}
    state = torch.random.get_rng_state()
    net = Network(module, "", X)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(before[k], v) for k, v in net.module.state_dict().items())
    assert module.training


def test_buffers_are_in_the_vector():
    net = network(nn.BatchNorm1d(8))
    net.train()
    net(X + 3.0)
    mean = net.named(net.get(net.whole))["1.running_mean"]
    assert np.abs(mean).sum() > 0
    assert net.named(net.get(net.whole))["1.num_batches_tracked"] == np.int64(1)
    assert net.named(net.initial)["1.num_batches_tracked"].dtype == np.int64


def test_no_linear_layer_lists_the_modules():
    with pytest.raises(ModelError, match=r"no linear layer.*0 \(Conv1d\), 1 \(ReLU\)"):
        Network(nn.Sequential(nn.Conv1d(1, 1, 1), nn.ReLU()), "", X)


def test_unknown_head_lists_the_modules():
    with pytest.raises(ModelError, match=r"head=fc9.*fc1 \(Linear\)"):
        Network(Residual(), "fc9", X)
    with pytest.raises(ModelError, match="no parameters"):
        network(nn.ReLU(), head="1")


def test_images_with_view_fall_back_to_the_plain_layout():
    class Viewing(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.fc = nn.Conv2d(1, 3, 3), nn.Linear(48, 4)

        def forward(self, x):
            return self.fc(self.conv(x).view(len(x), -1))

    class Flattening(Viewing):
        def forward(self, x):
            return self.fc(self.conv(x).flatten(1))

    images = torch.rand(3, 1, 6, 6)
    assert not Network(Viewing(), "", images).channels_last
    net = Network(Flattening(), "", images)
    assert net.channels_last
    torch.testing.assert_close(net(images), net.module(images))
