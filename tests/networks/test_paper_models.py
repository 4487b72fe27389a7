"""The networks of FedRep's experiments: sizes by hand, the function, how they train, whole runs."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from corsage.app import command
from corsage.core.configuration.key_groups import ModelKeys, TrainKeys
from corsage.core.errors import ModelError
from corsage.datasets.dealing import federated
from corsage.networks.batches import Examples
from corsage.networks.build import build_network
from corsage.networks.local_training import train_bodies, train_models
from corsage.networks.training import sgd
from tests.support.federations import federate
from tests.support.published import leaf, tweet, write_cifar, write_glove, write_json

IMAGES = (3, 32, 32)
TWEETS = (25, 300)


def build(model, shape=IMAGES, classes=10, **keys):
    return build_network(ModelKeys(model=model, **keys), shape, classes, 0)


def full(*sizes):
    """Weights and biases of linear layers one after the other."""
    return sum(a * b + b for a, b in pairwise(sizes))


def conv(before, after):
    return 5 * 5 * before * after + after


@pytest.mark.parametrize(
    ("model", "shape", "classes", "keys", "body", "head"),
    [
        ("cnn-cifar10", IMAGES, 10, {}, conv(3, 64) + conv(64, 64) + full(1600, 120, 64), 650),
        (
            "cnn-cifar100", IMAGES, 100, {},
            conv(3, 64) + conv(64, 128) + full(3200, 256, 128), 12_900,
        ),
        ("mlp", (1, 28, 28), 10, {"hidden": "512,256,64"}, full(784, 512, 256, 64), 650),
        ("mlp", (1, 28, 28), 10, {}, full(784, 200), 2010),
        ("lstm", TWEETS, 2, {}, 4 * 128 * (300 + 128) + 2 * 4 * 128 + full(128, 10), 22),
    ],
)  # fmt: skip
def test_sizes_by_hand(model, shape, classes, keys, body, head):
    net = build(model, shape, classes, **keys)
    assert (net.body.stop, len(net.flat) - net.head.start) == (body, head)
    assert net.head_name == "head" and net.split_exact and net.linear_head


def test_the_sums():
    """The same numbers once more, as they would be printed."""
    sizes = [len(build(m, s, c).flat) for m, s, c in (
        ("cnn-cifar10", IMAGES, 10), ("cnn-cifar100", IMAGES, 100), ("lstm", TWEETS, 2),
    )]  # fmt: skip
    assert sizes == [307_842, 1_075_044, 221_472]


@pytest.mark.parametrize("model", ["cnn-cifar10", "cnn-cifar100"])
def test_cnns_are_the_papers_function(model):
    net = build(model, classes=7)
    net.train(False)
    p = {n: torch.from_numpy(a) for n, a in net.named(net.initial).items()}
    x = torch.randn(4, *IMAGES)
    h = F.max_pool2d(F.relu(F.conv2d(x, p["conv1.weight"], p["conv1.bias"])), 2)
    h = F.max_pool2d(F.relu(F.conv2d(h, p["conv2.weight"], p["conv2.bias"])), 2)
    h = h.flatten(1)
    for name in ("fc1", "fc2"):
        h = F.relu(F.linear(h, p[f"{name}.weight"], p[f"{name}.bias"]))
    assert torch.allclose(net(x), F.linear(h, p["head.weight"], p["head.bias"]), atol=1e-5)


def test_lstm_is_the_recurrence():
    """torch's equations of an LSTM, step by step, and the two layers after the last word."""
    net = build("lstm", (5, 7), 2)
    p = {n: torch.from_numpy(a) for n, a in net.named(net.initial).items()}
    x = torch.randn(3, 5, 7)
    h, c = torch.zeros(3, 128), torch.zeros(3, 128)
    for step in range(5):
        gates = x[:, step] @ p["lstm.cells.weight_ih_l0"].T + p["lstm.cells.bias_ih_l0"]
        gates = gates + h @ p["lstm.cells.weight_hh_l0"].T + p["lstm.cells.bias_hh_l0"]
        i, f, g, o = gates.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
    h = F.relu(F.linear(h, p["fc.weight"], p["fc.bias"]))
    assert torch.allclose(net(x), F.linear(h, p["head.weight"], p["head.bias"]), atol=1e-5)
    decay = net.named(net.decay.numpy())
    assert {n for n, d in decay.items() if d.all()} == {n for n in decay if "weight" in n}


def test_lstm_learns_as_torch_would(rounds=3):
    """The house's loop on the flat vector against torch's optimiser on the module's parameters."""
    net = build("lstm", (4, 3), 2)
    keys = TrainKeys(lr=0.1, weight_decay=0.0)
    x, y = torch.randn(9, 4, 3), torch.arange(9) % 2
    order = [np.arange(0, 4), np.arange(4, 8), np.arange(8, 9)] * rounds
    ours = train_models(net, net.initial, Examples(x, y, np.array([9])), [order], keys)[0]
    plain = nn.LSTM(3, 128, batch_first=True)
    rest = nn.Sequential(nn.Linear(128, 10), nn.ReLU(), nn.Linear(10, 2))
    named = net.named(net.initial)
    plain.load_state_dict({n: torch.from_numpy(named[f"lstm.cells.{n}"].copy())
                           for n, _ in plain.named_parameters()})  # fmt: skip
    for layer, name in ((rest[0], "fc"), (rest[2], "head")):
        layer.load_state_dict({k: torch.from_numpy(named[f"{name}.{k}"].copy())
                               for k in ("weight", "bias")})  # fmt: skip
    parameters = [*plain.parameters(), *rest.parameters()]
    optimiser = torch.optim.SGD(parameters, lr=0.1, momentum=0.5)
    for batch in order:
        optimiser.zero_grad()
        F.cross_entropy(rest(plain(x[batch])[0][:, -1]), y[batch]).backward()
        optimiser.step()
    theirs = torch.cat([p.detach().flatten() for p in parameters]).numpy()
    assert np.abs(theirs - net.initial).max() > 1e-2
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_what_is_trained_together_and_what_is_cached():
    plain, random, recurrent = build("cnn-cifar10"), build("cnn-cifar100"), build("lstm", TWEETS)
    assert plain.stackable and plain.cacheable
    assert not random.stackable and not random.cacheable and random.stochastic
    assert "Dropout (dropout) in the body changes in training" in random.why
    assert not recurrent.stackable and recurrent.cacheable


def test_cnn_cifar10_in_stacked_layers_is_the_loop():
    net = build("cnn-cifar10", classes=3)
    x, y = torch.randn(10, *IMAGES), torch.arange(10) % 3
    data = Examples(x, y, np.array([6, 4]))
    orders = [[np.arange(4), np.arange(4, 6)], [np.arange(4)]]
    heads = np.stack([net.initial[net.head], net.initial[net.head] * 2])
    keys = TrainKeys(lr=0.05)
    together = train_bodies(net, net.initial[net.body], heads, data, orders, keys)
    for u, order in enumerate(orders):
        net.set(net.whole, net.initial)
        net.set(net.head, heads[u])
        sgd(net, data.user(u), order, net.body, keys)
        assert np.abs(net.get(net.body) - net.initial[net.body]).max() > 1e-4
        np.testing.assert_allclose(together[u], net.get(net.body), atol=1e-5)


def test_other_shapes_are_refused_in_one_line():
    with pytest.raises(ModelError, match=r"model=lstm: needs sequences .*\(3, 32, 32\)"):
        build("lstm")
    with pytest.raises(ModelError, match=r"model=cnn-cifar10: needs images .*\(25, 300\)"):
        build("cnn-cifar10", TWEETS)
    with pytest.raises(ModelError, match="model=cnn-cifar100: the images are too small"):
        build("cnn-cifar100", (3, 15, 15))


def run(folder, *words):
    """A run on the command line; its summary."""
    federated.opened.cache_clear()
    out = folder / "out.json"
    common = ("num-rounds=2", "fraction-train=0.5", "head-epochs=2", "fine-tune-epochs=0")
    places = (f"run-dir={folder / 'runs'}", f"cache-dir={folder / 'cache'}", "--json", str(out))
    assert command.run([*common, *words, *places], "test") == 0
    return json.loads(out.read_text())


def test_fedrep_on_cifar10(tmp_path):
    write_cifar(tmp_path, "cifar10", 20)
    summary = run(
        tmp_path, "strategy=fedrep", "dataset=cifar10", f"data-dir={tmp_path}", "num-users=6",
        "model=cnn-cifar10", "test-fraction=0.25",
    )  # fmt: skip
    assert summary["results"][0]["strategy"] == "fedrep"


def test_fedrep_on_sent140(tmp_path):
    tweets = [("what a good day!", 1), ("a bad, bad day", 0)] * 4
    users = {
        f"u{u}": ([tweet(i, f"u{u}", t) for i, (t, _) in enumerate(tweets)], [y for _, y in tweets])
        for u in range(5)
    }
    write_json(tmp_path / "data" / "all_data" / "all_data.json", leaf(users))
    write_glove(tmp_path / "glove.6B.300d.txt", "good bad day ! ,", width=300)
    summary = run(
        tmp_path, "strategy=fedrep", "dataset=sent140", f"data-dir={tmp_path}", "num-users=0",
        "partition=natural", "model=lstm", "batch-size=4", "lr=0.1", "test-fraction=0.25",
        "num-rounds=3", "local-epochs=5", "head-epochs=10", "fraction-train=1",
    )  # fmt: skip
    result = summary["results"][0]
    assert result["accuracy"]["mean"] > 0.8
    assert (
        result["bytes_up"] == 3 * 5 * 4 * 221_450
    )  # the body; the word vectors stay where they are


def test_dropout_before_the_head_is_said_in_the_log(tmp_path):
    write_cifar(tmp_path, "cifar100", 24)
    federated.opened.cache_clear()
    more = {"model": "cnn-cifar100", "dataset": "cifar100", "data-dir": str(tmp_path)}
    _, _, notes = federate(
        "fedrep", num_users=4, num_rounds=1, head_epochs=1, partition="iid", **more
    )
    said = [note for note in notes.notes if "features are not cached" in note]
    assert len(said) == 1 and "Dropout (dropout) in the body" in said[0]
