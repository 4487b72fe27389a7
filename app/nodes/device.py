"""A firewall between a device owner's machine and a server: what is done of what a message asks.

A message is read through what is declared here and by the clients (`Client.takes`). It may set the
keys of training, of the model and of its algorithm, each typed and within the limits of the node
config; how the columns of a file are to be read; and for which of the device's own users. Files,
folders and what is computed on are the device's own words, and never a message's. The signer of an
app may have said until when it is good, and which keys a run may set (`corsage deploy`).
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord

from corsage.app.nodes.node import Node, Order, client_of
from corsage.app.results.known_models import note_model
from corsage.core.configuration.held_objects import is_name
from corsage.core.configuration.known_keys import defaults
from corsage.core.errors import ConfigError, ModelError, Refused
from corsage.core.keys import EPOCH_LIMIT, STEP_LIMIT, Keys, flatten
from corsage.core.messages.asked import arrays_as, options_of
from corsage.core.messages.fields import Doubt, record_of, shown
from corsage.core.messages.limits import ZOO_WORD, Limits
from corsage.core.messages.wire import ROW_OPTION, Task, decode_task
from corsage.core.registry import ALGORITHMS

if TYPE_CHECKING:
    from corsage.clients.base import Client


APP = Path(__file__).parents[2]
"""The bundle that this code came in; a checkout, or an installation, which nobody has signed."""


@dataclass(frozen=True)
class Terms:
    """The word of an app's signer on it.

    Parameters
    ----------
    until : the last moment at which it is good; None: nothing was said.
    keys : those that a run may set, of what a device is told; None: all.
    """

    until: datetime | None = None
    keys: tuple[str, ...] | None = None

    def check_time(self) -> None:
        """Refuse everything once the signature has ended."""
        if self.until and datetime.now(UTC) > self.until:
            raise Refused(
                f"the app's signature ended on {self.until:%Y-%m-%d} by this device's clock: sign "
                "it anew (corsage deploy)"
            )

    def check_keys(self, task: Task) -> None:
        """Refuse values that are not an app's own, of keys that a run may not set."""
        if self.keys is None:
            return
        by_default = str(defaults()["strategy"]).split(",")
        if "strategy" not in self.keys and task.algorithm not in by_default:
            raise Refused(f"strategy={task.algorithm}: the app's signature lets no run set it")
        for group in (task.device_data, task.train, task.model, task.keys):
            own = flatten(type(group)())
            for name, value in flatten(group).items():
                if value != own[name] and name not in self.keys:
                    raise Refused(
                        f"{name}={shown(value)}: the app's signature lets a run set these keys "
                        f"alone: {', '.join(self.keys)}"
                    )


@lru_cache(maxsize=1)
def terms_of(app: Path) -> Terms:
    """The terms of a bundle."""
    path = app / "pyproject.toml"
    content = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    said = content.get("tool", {}).get("corsage", {})
    if "signed-until" not in said:
        return Terms()
    until = datetime.fromtimestamp(int(said["signed-until"]), UTC)
    return Terms(until, tuple(said["run-keys"]) if "run-keys" in said else None)


def read_task(content: Any, limits: Limits) -> Task:
    """The task of a message's content, as far as it can be judged without the data."""
    terms = terms_of(APP)
    terms.check_time()
    task = decode_task(record_of(content, "config", ConfigRecord), Doubt(limits))
    terms.check_keys(task)
    return task


def admitted(task: Task, node: Node, content: Any, limits: Limits) -> Order:
    """The order in a message for this device's users; Refused if it is not to be carried out."""
    cls = client_of(task)
    doubt = Doubt(limits)
    options = with_row(options_of(task.options, cls.takes, doubt), task.algorithm)
    each = [options_of(one, cls.takes, doubt) for one in task.cohort_options]
    task = replace(task, options=options, cohort_options=each)
    members = check_users(task, node, cls)
    check_data(task, node)
    check_model(task, node, limits)
    check_work(task, node, limits)
    from corsage.networks.build import build_network

    network = build_network(task.model, task.shape, task.num_classes, task.seed, node.device)
    size = network.whole.stop
    limits.check("max-parameters", "parameters of the model", size)
    limits.check_space("the models of all users", size * members)
    limits.check_space("matrices of all parameters by all", cls.takes.squares * size**2 * members)
    sizes = {"P": size, "B": network.body.stop, "H": size - network.head.start}
    sizes |= {"F": network.width, "C": task.num_classes}
    rows = content.get("rows")
    each_users = {} if rows is None else arrays_as(rows, cls.takes.rows, sizes, len(task.users))
    if cls.takes.many in each_users:
        count = each_users[cls.takes.many].shape[1] * len(task.users)
        limits.check_space("matrices of all parameters by all", count * size**2)
    return Order(task, arrays_as(content.get("arrays"), cls.takes.shared, sizes), each_users)


def with_row(options: dict[str, Any], algorithm: str) -> dict[str, Any]:
    """The options, of which the row names a file: it is the algorithm's, and what it was asked."""
    row = options.get(ROW_OPTION, "")
    if row and not re.fullmatch(rf"{re.escape(algorithm)}(\+[a-z][a-z-]{{0,11}})?(\+new)?", row):
        raise Refused(f"row={shown(row)}: not one of {algorithm}'s")
    return options


def check_users(task: Task, node: Node, cls: type[Client[Any]]) -> int:
    """Refuse users who are not this device's; how many there are in all."""
    users, hosted = task.users, set(node.users)
    if not users or len(set(users)) < len(users):
        raise Refused("users: none, or one of them twice")
    if len(task.keep) % len(users):
        raise Refused(f"keep has {len(task.keep)} versions for {len(users)} users")
    for name, each in (("weights", task.weights), ("cohort-options", task.cohort_options)):
        if len(task.versions) != len(users) or len(each) not in (0, len(users)):
            numbers = f"{len(task.versions)} versions and {len(each)} {name}"
            raise Refused(f"{numbers} for {len(users)} users")
    if not cls.cohorts:
        check_own(users, hosted)
        return len(users)
    check_own([name for name in users if name not in task.members and is_new(task, name)], hosted)
    for name, group in task.members.items():
        if len(set(group)) < len(group):
            raise Refused(f"members of {shown(name)}: one of them twice")
        check_own(group, hosted)
    return len(hosted)


def is_new(task: Task, name: str) -> bool:
    """True if a cohort has no state here, which would say who its users are."""
    return task.versions[task.users.index(name)] == 0


def check_own(users: list[str], own: set[str]) -> None:
    """Refuse users who are not this device's."""
    if foreign := [user for user in users if user not in own]:
        raise Refused(f"user {shown(foreign[0])} is not this device's")


def check_data(task: Task, node: Node) -> None:
    """Refuse a model for other samples than the device's."""
    if task.shape != node.data.shape:
        raise Refused(f"input-shape={shown(list(task.shape))}: the device's samples have another")
    own, asked = node.data.num_classes, task.num_classes
    if bool(own) != bool(asked) or asked < own:
        raise Refused(f"num-classes={asked}: the device's labels are others")


def check_model(task: Task, node: Node, limits: Limits) -> None:
    """Refuse a built-in model of too many parameters, before any of them is there.

    What an owner named in `models` is measured when it is built.
    """
    from corsage.networks.build import measure_model
    from corsage.networks.zoo import ZOO as BUILT_IN

    model = task.model.model
    if model not in limits.models and not (model in BUILT_IN and ZOO_WORD in limits.models):
        allowed = ",".join(limits.models)
        raise Refused(f"model={model} is not one of this device's (models={allowed})")
    if model not in BUILT_IN:
        note_model(model)
        return
    try:
        size, widest = measure_model(task.model, task.shape, task.num_classes)
    except (ConfigError, ModelError) as error:
        raise Refused(str(error)) from None
    limits.check("max-parameters", "parameters of the model", size)
    limits.check_space("the widest layer for all samples", widest * samples(node))


def frozen_of(task: Task, node: Node, limits: Limits) -> str:
    """The fingerprint of what nobody trains of the model, for this device's samples.

    Empty where there is nothing of it, or the model for all is not known yet: then it is compared
    when the device is asked to train.
    """
    data, keys = node.data, task.model
    of_ours = ":" not in keys.model and not is_name(keys.model)
    if not data.shape or data.facts is not None or (of_ours and not keys.frozen):
        return ""
    try:
        check_model(replace(task, shape=data.shape, num_classes=data.num_classes), node, limits)
        from corsage.networks.build import build_network

        network = build_network(keys, data.shape, data.num_classes, task.seed, node.device)
    except (ConfigError, ModelError):
        return ""
    return network.vector.fixed.fingerprint


def check_work(task: Task, node: Node, limits: Limits) -> None:
    """Refuse a plan of batches that would not fit into memory."""
    keys, n, asked = task.train, samples(node), [int(task.options.get("adapt-epochs", 0))]
    if task.options.get("fine-tune"):
        limits.check(EPOCH_LIMIT, "fine-tune-epochs", keys.fine_tune_epochs)
        asked.append(keys.fine_tune_epochs)
    epochs = max([*limited(keys, EPOCH_LIMIT), *limited(task.keys, EPOCH_LIMIT), *asked, 1])
    often = max([*limited(task.keys, STEP_LIMIT), 1])
    batch = min(keys.batch_size, n)
    walks = [sum(run[1] for run in options.get("walk", ())) for options in task.cohort_options]
    steps = max([int(task.options.get("local-steps", 0)), *walks, 0])
    steps += keys.local_steps * often * len(task.users)
    drawn = 6 + 12 * bool(keys.augment)  # what is drawn for a sample of a step, too
    limits.check_space("the batches", drawn * (epochs * n * often + steps * batch))


def limited(keys: Keys, limit: str) -> list[int]:
    """The values of the keys that one of the limits is for."""
    declared = fields(keys)  # type: ignore[arg-type]
    return [getattr(keys, f.name) for f in declared if f.metadata["limit"] == limit]


def samples(node: Node) -> int:
    """Samples of all the device's users."""
    return int(max(node.data.train_sizes.sum(), node.data.test_sizes.sum()))


def experiment_of(task: Task) -> str:
    """The name of a task's states: no algorithm reads what another one kept.

    What one of them keeps to itself is what another one sends.
    """
    owners = [name for name in ALGORITHMS if task.experiment.startswith(f"{name}-")]
    if max(owners, key=len, default="") == task.algorithm:
        return task.experiment
    return f"{task.algorithm}-of-{task.experiment}"
