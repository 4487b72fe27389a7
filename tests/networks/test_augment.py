"""Images that change at each step: what is drawn, what an image becomes, and who sees it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from corsage.core.configuration.key_groups import ModelKeys, TrainKeys
from corsage.core.errors import ModelError
from corsage.networks import local_training as doors
from corsage.networks.augment import Views, check_images
from corsage.networks.batches import Examples
from corsage.networks.build import build_network
from corsage.networks.network import Network
from corsage.networks.training import StepLoss, batches, sgd

KEYS = TrainKeys(lr=0.05, momentum=0.5, weight_decay=0.01, augment=("crop", "flip"))
SIZES = [7, 3, 10]
SHAPES = {"lenet": (1, 12, 12), "mlp": (2, 6, 5)}


def views(**changes: object) -> Views:
    zero = torch.tensor([-1.0, 0.5]).view(2, 1, 1)
    own = Views(("crop", "flip"), 2, 0, 3, ("a", "b", "c"), zero, "model")
    return replace(own, **changes)


def cropped(image: Tensor, move: np.ndarray, zero: Tensor, padding: int) -> Tensor:
    """As torchvision does it: pad with black, cut out, turn."""
    channels, height, width = image.shape
    wide = zero.expand(channels, height + 2 * padding, width + 2 * padding).clone()
    wide[:, padding : padding + height, padding : padding + width] = image
    down, right = (int(m) + padding for m in move[:2])
    cut = wide[:, down : down + height, right : right + width]
    return cut.flip(2) if move[2] else cut


def test_an_image_is_padded_cut_out_and_turned() -> None:
    own, x = views(), torch.randn(9, 2, 5, 7)
    (moves,) = own.draws(1, [np.arange(9)])
    assert len({tuple(m) for m in moves}) > 5
    found = own.apply(x, moves)
    for image, move, seen in zip(x, moves, found, strict=True):
        assert torch.equal(seen, cropped(image, move, own.zero, 2))
    still = views(kinds=()).draws(1, [np.arange(9)])[0]
    assert not still.any() and torch.equal(own.apply(x, still), x)


def test_draws_are_by_seed_purpose_round_user_and_step() -> None:
    order = [np.arange(4), np.arange(4), np.arange(2)]
    first = np.concatenate(views().draws(0, order))
    assert np.array_equal(first, np.concatenate(views().draws(0, order)))
    assert np.array_equal(first[:8], np.concatenate(views().draws(0, order[:2])))
    assert not np.array_equal(first[:4], first[4:8])
    others = [views(seed=1), views(round=4), views(purpose="head"), views(users=("x", "b"))]
    assert all(not np.array_equal(first, np.concatenate(v.draws(0, order))) for v in others)
    assert not np.array_equal(first, np.concatenate(views().draws(0, order, stream=1)))
    many = np.concatenate(views().draws(0, [np.arange(20_000)]))
    shifts, turned = np.bincount(many[:, 0] + 2) / 20_000, many[:, 2].mean()
    assert np.allclose(shifts, 0.2, atol=0.02) and abs(turned - 0.5) < 0.02


def plain_loop(net: Network, data: Examples, u: int, order: list, part: slice) -> np.ndarray:
    """One user by torch.optim.SGD on images that are cut out one by one."""
    net.set(net.whole, net.initial)
    net.activate(part)
    trained = [b.tensor for b in net.blocks_of(part)]
    groups = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": KEYS.weight_decay},
        {"params": [p for p in trained if p.dim() == 1]},
    ]
    optimiser = torch.optim.SGD(groups, lr=KEYS.lr, momentum=KEYS.momentum)
    assert data.views is not None
    x, y = data.user(u)
    for rows, moves in zip(order, data.views.draws(u, order), strict=True):
        optimiser.zero_grad(set_to_none=False)
        pairs = zip(x[rows], moves, strict=True)
        seen = torch.stack([cropped(one, m, data.views.zero, 2) for one, m in pairs])
        F.cross_entropy(net.module(seen), y[rows]).backward()
        optimiser.step()
    return net.get(part)


@pytest.mark.parametrize("model", list(SHAPES))
@pytest.mark.parametrize("part", ["whole", "head"])
def test_users_alone_and_together_see_the_same(model: str, part: str) -> None:
    """With the head alone, too: features of an image that changes are not kept."""
    net = build_network(ModelKeys(model=model, hidden="9"), SHAPES[model], 3, 0)
    g, rng = torch.Generator().manual_seed(0), np.random.default_rng(0)
    x = torch.randn((sum(SIZES), *SHAPES[model]), generator=g)
    y = torch.randint(3, (sum(SIZES),), generator=g)
    own = views(zero=torch.full((SHAPES[model][0], 1, 1), -0.7))
    data = Examples(x, y, np.array(SIZES, np.int64), views=own)
    orders = [batches(rng, n, 2, 4) for n in SIZES]
    if part == "head":
        heads = np.tile(net.initial[net.head], (3, 1))
        found = doors.train_heads(net, net.initial[net.body], heads, data, orders, KEYS)
    else:
        found = doors.train_models(net, net.initial, data, orders, KEYS)
    where = getattr(net, part)
    for u, order in enumerate(orders):
        wanted = plain_loop(net, data, u, order, where)
        np.testing.assert_allclose(found[u], wanted, atol=1e-5)
        net.set(net.whole, net.initial)
        what = StepLoss(change=data.change_of(u, order))
        sgd(net, data.user(u), order, where, KEYS, what=what)
        np.testing.assert_allclose(net.get(where), wanted, atol=2e-6)
    still = doors.train_models(net, net.initial, replace(data, views=None), orders, KEYS)
    assert np.abs(still[:, where] - found).max() > 1e-3


def test_only_images_are_changed() -> None:
    check_images(KEYS, (1, 8, 8))
    check_images(TrainKeys(), (6,))
    with pytest.raises(ModelError, match=r"augment=crop,flip: it is for images .* shape \(6,\)"):
        check_images(KEYS, (6,))
