"""Models whose forward returns more than a tensor, as those of Hugging Face do."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from corsage import simulate
from corsage.core.errors import ModelError
from corsage.networks.criterion import output_of

RNG = np.random.default_rng(0)
USERS = [(RNG.random((20, 4), np.float32), np.arange(20) % 3) for _ in range(3)]


class ModelOutput(OrderedDict[str, Any]):
    """As that of transformers: a dictionary whose entries are attributes and have places too."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)


@dataclass
class Answer:
    """An object with more in it than logits."""

    hidden: Tensor
    logits: Tensor


class Net(nn.Module):
    """A body, a head, and an answer in some form."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Any:
        """Logits, and what else its form has."""
        hidden = torch.relu(self.body(x))
        logits = self.head(hidden)
        return {
            "tensor": logits,
            "object": Answer(hidden, logits),
            "dictionary": {"loss": None, "logits": logits},
            "output": ModelOutput(hidden_states=hidden, logits=logits),
            "tuple": (logits, hidden),
        }[self.form]


@pytest.mark.parametrize("form", ["object", "dictionary", "output", "tuple"])
def test_the_form_of_the_answer_is_no_matter(form: str) -> None:
    """Trained, judged, loaded; the head is split off as always. The module stays the app's own."""
    keys: dict[str, Any] = {"num_rounds": 2, "fraction_train": 1.0, "progress": False}
    names = "fedrep,ditto,perfedavg"
    found, plain = (simulate(names, USERS, model=Net(one), **keys) for one in (form, "tensor"))
    for row in plain:
        assert found[row].per_user == plain[row].per_user == found[row].evaluate()
        assert found[row].user("0").predict(USERS[0][0]).shape == (20,)
    module = found["fedrep"].user("0").module()
    assert torch.is_tensor(output_of(module(torch.zeros(2, 4))))
    assert not torch.is_tensor(module(torch.zeros(2, 4)))


def test_auxiliary_outputs_of_training_are_left_alone() -> None:
    """As Inception has them: a tuple in training, a tensor in evaluation."""

    class Inception(Net):
        def forward(self, x: Tensor) -> Any:
            logits = super().forward(x)
            return (logits, logits.detach() * 2) if self.training else logits

    keys: dict[str, Any] = {"num_rounds": 2, "fraction_train": 1.0, "progress": False}
    found = simulate("fedavg", USERS, model=Inception("tensor"), **keys)
    plain = simulate("fedavg", USERS, model=Net("tensor"), **keys)
    assert found["fedavg"].per_user == plain["fedavg"].per_user


@pytest.mark.parametrize("answer", ["words", (), ("a", torch.zeros(2)), {"loss": torch.zeros(2)}])
def test_what_has_no_logits_is_refused_in_a_line(answer: Any) -> None:
    class Odd(Net):
        def forward(self, x: Tensor) -> Any:
            return answer

    with pytest.raises(ModelError, match=r"model=Odd: forward returns a .*: neither a ") as caught:
        simulate("fedavg", USERS, model=Odd("tensor"), num_rounds=1, progress=False)
    assert "\n" not in str(caught.value)
