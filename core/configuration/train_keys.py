"""The keys of training at a user: how long, by which optimizer, on which loss, on what."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from corsage.core.errors import ConfigError
from corsage.core.keys import EPOCH_LIMIT, STEP_LIMIT, Keys, check_limits, convert, kebab, key, word

DECAY, TABLE_DECAY = 1e-4, 0.03
"""Weight decay where nobody says; the second where numbers of a scaled table are predicted."""
AUTO_WEIGHTS = "auto"
"""Class weights by the user's own classes."""


@dataclass(frozen=True)
class TrainKeys(Keys):
    """Training at a user."""

    title = "Local training"

    local_epochs: int = key(
        1, "epochs a round (FedRep: of the body, after the head's)", low=0, limit=EPOCH_LIMIT
    )
    local_steps: int = key(
        0,
        "gradient steps of a round instead of local-epochs, the same for users of few and of many "
        "samples; with work=equal all steps of a method, its own epochs say how they are shared "
        "out; 0: by epochs",
        low=0,
        limit=STEP_LIMIT,
    )
    work: str = key(
        "equal",
        "equal: strategies that are compared do as many gradient steps a user and round (see "
        "work-epochs); as-set: what their own keys say",
        choices=("equal", "as-set"),
    )
    work_epochs: float = key(
        0.0,
        "work=equal: gradient steps of a round, in epochs of the user's data; a method's own "
        "epochs say how they are shared out. 0: those of the most costly of the compared methods",
        low=0.0,
        limit=EPOCH_LIMIT,
    )
    fine_tune_epochs: int = key(
        10,
        "epochs that each user trains after the last round, drawn or not, for rows of their own: "
        "of a global model's head (fedavg+ft) and of all of it (fedavg+ft-all), or of what is the "
        "user's own (fedrep+own); 0: none",
        low=0,
    )
    end_heads: tuple[str, ...] = key(
        (),
        "heads in closed form over the trained body, each a row (fedavg+exact): exact (a ridge to "
        "all users'), gauss (Gaussian classes), prior (the user's class frequencies), auto (what "
        "tells left-out training records best)",
        choices=("exact", "gauss", "prior", "auto"),
    )
    batch_size: int = key(
        10,
        "samples a step; the last short batch is kept (of one sample alone it joins the one "
        "before, where the model has BatchNorm)",
        low=1,
    )
    optimizer: str = key(
        "sgd",
        "of local training: sgd, adam (weight decay is part of the gradient), or adamw (weights "
        "shrink by themselves); what it remembers starts anew for each user and round",
        choices=("sgd", "adam", "adamw"),
    )
    lr: float = key(0.01, "step size of the optimizer", low=0.0)
    lr_schedule: str = key(
        "constant",
        "how lr changes over the rounds, for all users of a round alike: constant; cosine: from "
        "lr to lr-end over num-rounds; step: times lr-factor after every lr-step-rounds. "
        "Fine-tuning and new users take lr itself",
        choices=("constant", "cosine", "step"),
    )
    lr_end: float = key(0.0, "cosine: lr after the last round", low=0.0)
    lr_step_rounds: int = key(30, "step: rounds with the same lr", low=1)
    lr_factor: float = key(0.1, "step: what lr is multiplied by", low=0.0, high=1.0)
    momentum: float = key(0.5, "sgd: momentum; starts at zero for each user and round", low=0.0)
    nesterov: bool = key(False, "sgd: Nesterov's momentum")
    adam_beta1: float = key(
        0.9, "adam, adamw: decay of the mean of gradients", low=0.0, high=0.999999
    )
    adam_beta2: float = key(
        0.999, "adam, adamw: decay of the mean of their squares", low=0.0, high=0.99999999
    )
    adam_epsilon: float = key(1e-8, "adam, adamw: added to the root of that", low=1e-16)
    weight_decay: float = key(
        -1.0,
        f"weight decay, on weights and not on biases; -1: {DECAY:g}, and {TABLE_DECAY:g} where "
        "numbers of a table are predicted, unless scale=none",
        low=-1.0,
    )
    clip_gradient: float = key(
        0.0,
        "the norm that the gradient of a step does not exceed, over all that is trained, a "
        "method's own terms included, weight decay not; 0: any",
        low=0.0,
    )
    label_smoothing: float = key(
        0.0,
        "cross-entropy: share of each label that is spread over all classes, in training",
        low=0.0,
        high=0.99,
    )
    class_weights: tuple[str, ...] = key(
        (),
        "cross-entropy: what classes weigh in training, a number for each class with commas; "
        "auto: each user's own n / (K n_c), n_c of its n training samples being of class c and K "
        "classes its own; empty: all the same",
    )
    augment: tuple[str, ...] = key(
        (),
        "images: how training samples are changed at each step, with commas: crop (shifted by up "
        "to augment-padding pixels, zeros come in), flip (left to right, one in two). Features of "
        "a body are then computed at each step, and never kept",
        choices=("crop", "flip"),
    )
    augment_padding: int = key(4, "crop: the most pixels that an image is shifted by", low=1)
    mixed_precision: str = key(
        "none",
        "bf16 or fp16: matrix products and convolutions of training are computed in 16 bits "
        "(torch.autocast; fp16 with a scaled loss), the model and its steps in 32; users then "
        "train one after the other",
        choices=("none", "bf16", "fp16"),
    )
    weighting: str = key(
        "uniform",
        "weights of the average over users: uniform, or by their training examples",
        choices=("uniform", "examples"),
    )
    device: str = key(
        "cpu", "cpu, cuda, cuda:1, ... in simulations; a device's node config says its own"
    )
    torch_threads: int = key(
        1,
        "torch threads a node; on spare cores more save seconds and cost CPU time, more than there "
        "are cores cost many times more",
        low=1,
    )

    @property
    def decay(self) -> float:
        """The weight decay; that of tables is put in place where they are known to be such."""
        return DECAY if self.weight_decay < 0 else self.weight_decay

    @property
    def plain(self) -> bool:
        """Tell whether a step is SGD's, with momentum and nothing else, in single precision."""
        simple = self.optimizer == "sgd" and not self.nesterov and not self.clip_gradient
        return simple and self.mixed_precision == "none"

    @property
    def numbers_of_classes(self) -> list[float]:
        """The weights of classes, if they are said one by one."""
        if self.class_weights == (AUTO_WEIGHTS,):
            return []
        found = [float(convert("class-weights", one, float)) for one in self.class_weights]
        for one in found:
            check_limits("class-weights", one, {"choices": None, "low": 0.0, "high": None})
        return found

    def of_round(self, number: int, rounds: int) -> TrainKeys:
        """The settings of a round, the first being 1: with its own lr."""
        if self.lr_schedule == "constant":
            return self
        done = min(max(number, 1), max(rounds, 1)) - 1
        if self.lr_schedule == "step":
            return replace(self, lr=self.lr * self.lr_factor ** (done // self.lr_step_rounds))
        way = (1 + math.cos(math.pi * done / max(rounds, 1))) / 2
        return replace(self, lr=self.lr_end + (self.lr - self.lr_end) * way)

    def of_tables(self) -> TrainKeys:
        """The settings for scaled tables of numbers: with their weight decay if nobody set one."""
        return replace(self, weight_decay=TABLE_DECAY) if self.weight_decay < 0 else self

    def check(self) -> None:
        """Refuse a weight decay that would make weights grow, and keys that others leave idle."""
        if -1 < self.weight_decay < 0:
            raise ConfigError(
                f"weight-decay={self.weight_decay:g}: must be at least 0, or -1: as the data want."
            )
        weights = self.numbers_of_classes
        if weights and not any(weights):
            raise ConfigError(f"class-weights={word(self.class_weights)}: no class has any weight.")
        if self.nesterov and not self.momentum:
            raise ConfigError("nesterov=true: it is a way of momentum; set momentum above 0.")
        if self.lr_schedule == "cosine" and self.lr_end > self.lr:
            raise ConfigError(f"lr-end={self.lr_end:g}: must be at most lr={self.lr:g}.")
        for name, (rule, wanted) in IDLE.items():
            value = getattr(self, name)
            said, known = getattr(self, rule), TRAIN_DEFAULTS[name]
            if value != known and not any(one in wanted for one in listed(said)):
                raise ConfigError(
                    f"{kebab(name)}={word(value)}: {kebab(rule)}={word(said)} has no use for it; "
                    f"leave it out, or set {kebab(rule)}={' or '.join(wanted)}."
                )

    def changed(self, names: tuple[str, ...]) -> dict[str, str]:
        """Those of some keys that are not as they are by themselves."""
        own = {name: getattr(self, name) for name in names}
        return {kebab(n): word(v) for n, v in own.items() if v != TRAIN_DEFAULTS[n]}


IDLE: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "momentum": ("optimizer", ("sgd",)),
    "nesterov": ("optimizer", ("sgd",)),
    "adam_beta1": ("optimizer", ("adam", "adamw")),
    "adam_beta2": ("optimizer", ("adam", "adamw")),
    "adam_epsilon": ("optimizer", ("adam", "adamw")),
    "lr_end": ("lr_schedule", ("cosine",)),
    "lr_step_rounds": ("lr_schedule", ("step",)),
    "lr_factor": ("lr_schedule", ("step",)),
    "augment_padding": ("augment", ("crop",)),
}
"""Keys that mean something only where another one has one of some values."""
TRAIN_DEFAULTS: Mapping[str, Any] = {f.name: f.default for f in fields(TrainKeys)}
RULE = ("optimizer", "nesterov", "clip_gradient", "mixed_precision")
"""Keys of the step."""
LOSS = ("label_smoothing", "class_weights")
"""Keys of the loss."""
LEARNING = (*RULE, "lr_schedule", *LOSS, "augment")
"""All keys that change how a model learns by gradient steps on batches."""


def listed(value: Any) -> tuple[Any, ...]:
    """A value, or several."""
    return value if isinstance(value, tuple) else (value,)
