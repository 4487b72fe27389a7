"""The built-in models and a user's own."""

import sys

import numpy as np
import pytest
import torch

from corsage.core.configuration.key_groups import ModelKeys
from corsage.core.errors import ModelError
from corsage.networks.build import build_network

OWN = """
import torch
from torch import nn

def two(shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], 5), nn.ReLU(), nn.Linear(5, num_classes))

def one(num_classes):
    return nn.Sequential(nn.Linear(6, num_classes))

def none():
    return nn.Sequential(nn.Linear(6, 4))

def wrong_type(num_classes):
    return "model"

def wrong_output(num_classes):
    return nn.Linear(6, num_classes + 1)

def wrong_input(num_classes):
    return nn.Linear(7, num_classes)

def failing(num_classes):
    raise ValueError("no luck")

value = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_models.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_models"
    sys.modules.pop("own_models", None)


def size(model, shape=(1, 28, 28), classes=10, **keys):
    return len(build_network(ModelKeys(model=model, **keys), shape, classes, 0).flat)


def test_parameter_counts_are_the_papers():
    assert size("linear") == 7850
    assert size("mlp") == 784 * 200 + 200 + 2010
    assert (
        size("mlp", hidden="512,256,64") == 784 * 512 + 512 + 512 * 256 + 256 + 256 * 64 + 64 + 650
    )
    assert size("lenet") == 61706
    assert size("cnn") == 582026
    assert size("cnn", shape=(3, 32, 32)) == 32 * 76 + 64 * 801 + 512 * 1601 + 5130


@pytest.mark.parametrize("model", ["linear", "mlp", "lenet", "cnn"])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_models_take_images(model, shape):
    net = build_network(ModelKeys(model=model), shape, 7, 0)
    assert net(torch.rand(2, *shape)).shape == (2, 7)
    assert net.cacheable and net.linear_head and net.split_exact


def test_lenet_at_28_has_the_layers_of_32():
    sizes = [build_network(ModelKeys(model="lenet"), (1, s, s), 10, 0).flat.shape for s in (28, 32)]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(("model", "shape"), [("lenet", (1, 8, 8)), ("cnn", (1, 15, 28))])
def test_small_images_are_refused(model, shape):
    with pytest.raises(ModelError, match=f"model={model}: the images are too small"):
        build_network(ModelKeys(model=model), shape, 10, 0)


def test_rows_are_no_images():
    with pytest.raises(ModelError, match=r"needs images.*\(64,\)"):
        build_network(ModelKeys(model="cnn"), (64,), 10, 0)


def test_hidden_must_be_sizes():
    for hidden in ("a", "20,0"):
        with pytest.raises(ModelError, match=f"hidden={hidden}"):
            build_network(ModelKeys(hidden=hidden), (4,), 2, 0)


def test_same_seed_same_start_and_global_state_untouched():
    state = torch.random.get_rng_state()
    first = build_network(ModelKeys(), (6,), 4, 1)
    assert torch.equal(state, torch.random.get_rng_state())
    assert build_network(ModelKeys(), (6,), 4, 1) is first
    other = build_network(ModelKeys(), (6,), 4, 2)
    assert not np.array_equal(first.initial, other.initial)
    torch.manual_seed(99)
    build_network.__globals__["_build"].cache_clear()
    np.testing.assert_array_equal(build_network(ModelKeys(), (6,), 4, 1).initial, first.initial)


@pytest.mark.parametrize(("factory", "count"), [("two", 35 + 24), ("one", 28), ("none", 28)])
def test_own_factory(own, factory, count):
    net = build_network(ModelKeys(model=f"{own}:{factory}"), (6,), 4, 0)
    assert len(net.flat) == count and net(torch.rand(3, 6)).shape == (3, 4)


def test_own_factory_in_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "own_here.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    assert len(build_network(ModelKeys(model="own_here:one"), (6,), 4, 0).flat) == 28


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("lennet", "no such model. Did you mean lenet"),
        ("no_such_package:f", "cannot import no_such_package"),
        ("own_models:tow", "has no tow. Did you mean two"),
        ("own_models:value", "value is not callable"),
        ("own_models:wrong_type", "returned str"),
        ("own_models:wrong_output", r"returns \(3, 5\).*must return \(3, 4\)"),
        ("own_models:wrong_input", r"fails on data of shape \(3, 6\)"),
        ("own_models:failing", "the factory failed: no luck"),
    ],
)
def test_errors_are_one_line(own, model, message):
    with pytest.raises(ModelError, match=message) as caught:
        build_network(ModelKeys(model=model), (6,), 4, 0)
    assert "\n" not in str(caught.value) and model.split(":", maxsplit=1)[0] in str(caught.value)


def test_head_key_reaches_the_network():
    net = build_network(ModelKeys(hidden="5", head="fc1"), (6,), 4, 0)
    assert net.head == slice(24, 59) and not net.split_exact
    with pytest.raises(ModelError, match="head=fc3: the model has no such module"):
        build_network(ModelKeys(hidden="5", head="fc3"), (6,), 4, 0)
