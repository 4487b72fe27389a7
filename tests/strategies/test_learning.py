"""Keys of local training in whole runs: what a round gets, what is refused, what nodes change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn import functional

from corsage.benchmarks import pfllib_split
from corsage.core.configuration.config import Config
from corsage.core.configuration.key_groups import TrainKeys
from corsage.core.errors import ConfigError, ModelError
from corsage.core.seeding import generator
from corsage.networks.augment import Views
from corsage.networks.training import StepLoss, sgd
from corsage.networks.training_objective import Objective, class_weights
from tests.support.federations import CONVEX, federate, reference, same_arrays
from tests.support.plain_steps import SCHEDULES
from tests.support.reference import KEYS, chosen, examples, final, run, user_batches, users_data

EVERYTHING: dict[str, Any] = {
    "optimizer": "adamw",
    "lr": 0.005,
    "clip_gradient": 1.0,
    "label_smoothing": 0.1,
    "class_weights": "auto",
    "augment": "crop,flip",
    "augment_padding": 1,
}


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_lr_of_each_round_is_torchs(name: str) -> None:
    keys = TrainKeys(lr=0.2, **SCHEDULES[name])
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=0.2)
    if name == "cosine":
        schedule: Any = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 7, eta_min=0.01)
    else:
        schedule = torch.optim.lr_scheduler.StepLR(optimiser, 2, gamma=0.3)
    for number in range(1, 8):
        assert keys.of_round(number, 7).lr == pytest.approx(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    assert keys.of_round(9, 7) == keys.of_round(7, 7) or name == "step"
    assert TrainKeys(lr=0.2).of_round(5, 7).lr == 0.2


def test_fine_tuning_takes_lr_itself() -> None:
    """With a last round that does nothing, heads are tuned all the same."""
    keys: dict[str, Any] = {"lr_schedule": "step", "lr_step_rounds": 1, "lr_factor": 0.0}
    _, tuned, _ = federate("fedavg", fine_tune_epochs=5, **keys)
    rows = {row["strategy"]: row["loss"]["mean"] for row in tuned.json()}
    assert rows["fedavg+ft"] < 0.9 * rows["fedavg"]


@pytest.mark.parametrize(
    "name", ["fedavg", "fedrep", "ditto", "apfl", "perfedavg", "pfedme", "l2gd"]
)
def test_nodes_change_nothing_with_every_key(name: str) -> None:
    _, one, _ = federate(name, num_rounds=2, **EVERYTHING)
    _, three, _ = federate(name, nodes=3, num_rounds=2, **EVERYTHING)
    rows = [[row["loss"]["mean"] for row in result.json()] for result in (one, three)]
    assert np.allclose(*rows, atol=1e-5)
    if one.arrays is not None:
        assert same_arrays(one.arrays, three.arrays)


@pytest.mark.parametrize("key", list(EVERYTHING))
def test_each_key_does_something(key: str) -> None:
    if key == "augment_padding":
        return
    own = {key: EVERYTHING[key], "lr": 0.01} if key != "lr" else {"lr": 0.005}
    _, ours, _ = federate("fedavg", **own)
    _, plain, _ = reference("fedavg")
    assert not same_arrays(ours.arrays, plain.arrays, 1e-4)


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_perfedavg_without_alpha_is_fedavg_by_adam_on_its_own_stream(variant: str) -> None:
    from corsage.networks.build import build_network
    from tests.support.federations import SMALL

    data, keys = users_data(), TrainKeys(lr=0.01, weight_decay=0.01, optimizer="adam")
    own: dict[str, Any] = {"optimizer": "adam", "lr": 0.01, "momentum": 0.5}
    own |= {"perfedavg_alpha": 0.0, "perfedavg_variant": variant, "num_rounds": 2}
    strategy, result = run("perfedavg", **own)
    net = build_network(Config.parse(SMALL).model, (1, 8, 8), 10, 0)
    w = net.initial
    for number in (1, 2):
        models = []
        for u in chosen(strategy, number):
            net.set(net.whole, w)
            order = user_batches(data, u, "perfedavg D'", number, 1)
            sgd(net, examples(data, u), order, net.whole, keys)
            models.append(net.get(net.whole))
        w = np.mean(models, axis=0).astype(np.float32)
    assert np.allclose(final(result), w, atol=1e-4)


def test_fedrep_under_all_losses_is_a_plain_loop() -> None:
    """Heads, then bodies, on smoothed and weighted labels of images that change."""
    from corsage.networks.build import build_network
    from tests.support.federations import SMALL

    own: dict[str, Any] = {**EVERYTHING, "num_rounds": 2}
    strategy, result = run("fedrep", **own)
    flat_keys = {k.replace("_", "-"): v for k, v in {**KEYS, **own}.items()}
    config, data = Config.parse({**SMALL, **flat_keys}), users_data()
    net = build_network(config.model, (1, 8, 8), 10, 0)
    zero = torch.tensor((0.0 - data.shift) * data.scale)
    phi, heads = net.initial[net.body], dict.fromkeys(data.users, net.initial[net.head])
    for number in (1, 2):
        bodies = []
        for u in chosen(strategy, number):
            x, y = examples(data, u)
            mean = Objective(0.1, class_weights(config.train, 10, y)[None]).mean_of(0)
            net.set(net.whole, np.concatenate([phi, heads[u]]))
            for purpose, part, epochs in (("head", net.head, 2), ("body", net.body, 1)):
                order = user_batches(data, u, purpose, number, epochs)
                views = Views(("crop", "flip"), 1, 0, number, (u,), zero, purpose)
                draws = views.draws(0, order)
                what = StepLoss(mean=mean, change=lambda x, s, v=views, d=draws: v.apply(x, d[s]))
                sgd(net, (x, y), order, part, config.train, what=what)
            heads[u] = net.get(net.head)
            bodies.append(net.get(net.body))
        phi = np.mean(bodies, axis=0).astype(np.float32)
    assert np.allclose(final(result), phi, atol=2e-5)


@pytest.mark.parametrize("name", sorted(CONVEX - {"async-l2gd"}))
def test_exact_methods_refuse_keys_of_gradient_steps(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^optimizer=adam: not for strategy={name}: "):
        federate(name, optimizer="adam")


@pytest.mark.parametrize(
    ("name", "keys", "said"),
    [
        (
            "async-l2gd",
            {"label_smoothing": 0.1},
            "label-smoothing=0.1: not for strategy=async",
        ),
        (
            "scaffold",
            {"optimizer": "adam"},
            "optimizer=adam: not for strategy=scaffold: its",
        ),
        ("scaffold", {"clip_gradient": 1}, "clip-gradient=1.0: not for strategy=scaffold: its"),
        (
            "fedavg",
            {"optimizer": "adam", "momentum": 0.9},
            "momentum=0.9: optimizer=adam has no",
        ),
        (
            "fedavg",
            {"adam_beta1": 0.8},
            "adam-beta1=0.8: optimizer=sgd has no use for it",
        ),
        ("fedavg", {"lr_factor": 0.2}, "lr-factor=0.2: lr-schedule=constant has no use for it"),
        ("fedavg", {"lr_schedule": "cosine", "lr_end": 1}, "lr-end=1: must be at most lr=0.01"),
        (
            "fedavg",
            {"augment": "flip", "augment_padding": 2},
            "augment-padding=2: augment=flip has",
        ),
        ("fedavg", {"nesterov": True, "momentum": 0}, "nesterov=true: it is a way of momentum"),
        ("fedavg", {"class_weights": "0,0"}, "class-weights=0,0: no class has any weight"),
        ("fedavg", {"class_weights": "1,x"}, "class-weights=x: not a number"),
        ("fedavg", {"augment": "turn"}, "augment=turn: not possible"),
    ],
)
def test_keys_that_would_do_nothing_are_refused(name: str, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{said}"):
        federate(name, **keys)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"label_smoothing": 0.1},
            "label-smoothing=0.1: it is for loss=cross-entropy, .* loss=logistic",
        ),
        ({"class_weights": "auto"}, "class-weights=auto: it is for loss=cross-entropy"),
        ({"augment": "flip"}, r"augment=flip: it is for images .* of shape \(\d+,\)"),
    ],
)
def test_models_and_data_that_have_no_use_for_a_key_refuse_it(
    keys: dict[str, Any], said: str
) -> None:
    ellipses: dict[str, Any] = {"dataset": "ellipses", "partition": "natural", "num_users": 0}
    with pytest.raises(ModelError, match=f"^{said}"):
        federate("fedavg", model="linear", loss="logistic", users_per_cluster=4, **ellipses, **keys)


def test_slower_paths_are_said() -> None:
    _, _, notes = federate("fedrep", num_rounds=1, optimizer="adam", augment="flip")
    assert any(n.startswith("optimizer=adam, augment=flip: steps are taken") for n in notes.notes)
    assert any(n.startswith("features are not cached: augment=flip") for n in notes.notes)
    _, _, notes = federate("fedrep", num_rounds=1, mixed_precision="bf16")
    assert any(n.startswith("mixed-precision=bf16: users train one") for n in notes.notes)
    _, _, notes = federate("fedrep", num_rounds=1)
    assert not notes.notes


def test_pfllibs_cut_through_a_softmax_regression_is_what_holds_it_back() -> None:
    """FedAvg agrees with a plain loop; pixels through a log-softmax, as PFLlib has it, do not."""
    images, y = load_digits(return_X_y=True)
    x = np.kron(images.reshape(-1, 8, 8) * 15, np.ones((3, 3)))
    users = [
        pfllib_split.scaled(x[own[:225]], y[own[:225]], x[own[225:]], y[own[225:]])
        for own in generator(0).permutation(len(y))[:1500].reshape(5, 300)
    ]
    house, loop = pfllib_split.corsage(users, 0), pfllib_split.plain(users, 0, lambda x: x)
    cut = pfllib_split.plain(users, 0, lambda x: functional.log_softmax(x, 1))
    assert house == pytest.approx(loop, abs=0.04) and loop[-1] > 0.8
    assert cut[-1] < loop[-1] - 0.2
