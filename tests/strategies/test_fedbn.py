"""FedBN against a loop: layers that normalise stay with each user, the rest is averaged."""

import numpy as np
import torch
from torch.nn import functional as F

from corsage.core.messages.encoding import decode
from corsage.core.seeding import generator
from corsage.networks.training import batches
from tests.networks.test_batch_norm import NORMED, normed
from tests.support.reference import DECAY, chosen, examples, run, users_data


def test_a_run_is_the_loop():
    """Of a mean over users by their samples; statistics stay away, too."""
    data = users_data(size_sigma=0.8)
    keys = {"size_sigma": 0.8, "weighting": "examples", "model": NORMED, "num_rounds": 3}
    strategy, result = run("fedbn", nodes=3, **keys)
    network = strategy.job.network
    common = {n: torch.from_numpy(a) for n, a in network.named(network.initial).items()}
    own = {user: {n: a for n, a in common.items() if n.startswith("2.")} for user in data.users}
    assert len(own["0"]) == 5  # weight, bias, mean, variance, and a counter
    for number in range(1, 4):
        sent, sizes = [], []
        for user in chosen(strategy, number):
            x, y = examples(data, user)
            rng = generator(0, "model", number, user)
            module = trained({**common, **own[user]}, x, y, batches(rng, len(y), 1, 10, join=True))
            own[user] = {n: a for n, a in module.items() if n in own[user]}
            sent.append({n: a for n, a in module.items() if n in common and n not in own[user]})
            sizes.append(len(y))
        for name in sent[0]:
            stacked = torch.stack([one[name] for one in sent])
            common[name] = torch.tensordot(torch.tensor(sizes) / sum(sizes), stacked, 1)
    for name, array in decode(result.arrays).items():
        np.testing.assert_allclose(array, common[name].numpy(), atol=2e-5)
    accuracies = result.json()[0]["per_user"]
    for user in data.users:
        module = normed((64,), 10)
        module.load_state_dict({**common, **own[user]}, strict=False)
        x, y = torch.from_numpy(np.array(data[user].x_test)), torch.tensor(data[user].y_test)
        x = (x.float() - data.shift) * data.scale
        right = (module.eval()(x).argmax(1) == y).float().mean()
        assert abs(accuracies[user] - float(right)) < 1e-6


def trained(values, x, y, steps):
    """The state after plain SGD."""
    module = normed((64,), 10)
    module.load_state_dict(values, strict=False)
    named = list(module.named_parameters())
    groups = [
        {"params": [p for n, p in named if "weight" in n], "weight_decay": DECAY},
        {"params": [p for n, p in named if "bias" in n]},
    ]
    optimiser = torch.optim.SGD(groups, lr=0.05, momentum=0.5)
    for batch in steps:
        optimiser.zero_grad()
        F.cross_entropy(module(x[batch]), y[batch]).backward()
        optimiser.step()
    return {n: a.detach().clone() for n, a in module.state_dict().items()}
