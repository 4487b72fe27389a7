"""What a device does of what a message asks: a firewall between its owner's machine and a server.

A message is read through what is declared here and by the clients (`Client.takes`). It may set the
keys of training, of the model and of its algorithm, each typed and within the limits of the node
config; how the columns of a file are to be read; and for which of the device's own users. Files,
folders and what is computed on are the device's own words, and never a message's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from flwr.app import ConfigRecord, RecordDict

from corsage.app.nodes.node import Node
from corsage.clients import client_class
from corsage.core.arrays import Arrays
from corsage.core.asked import (
    MOST,
    USUAL,
    Check,
    arrays_as,
    checked,
    flag,
    listed,
    number,
    shown,
    text,
    whole,
    word,
)
from corsage.core.columns import BadColumns
from corsage.core.errors import ConfigError, ModelError, Refused
from corsage.core.groups import ModelKeys, TrainKeys
from corsage.core.held import is_name
from corsage.core.introduction import FINGERPRINT
from corsage.core.keys import EPOCHS, STEPS, Keys, kebab, names, read
from corsage.core.limits import ZOO, Limits
from corsage.core.preparation import Preparation
from corsage.core.registry import ALGORITHMS, keys_class
from corsage.core.wire import BY_USER, COHORT_OPTIONS, MEMBERS, Task, by_user
from corsage.datasets.csvfile import CsvKeys

if TYPE_CHECKING:
    from corsage.clients.base import Client

K = TypeVar("K", bound=Keys)
COLUMNS = (
    *("label-column", "labels", "feature-columns", "drop-columns", "category-columns"),
    *("scale", "missing", "test-fraction", "max-train-samples"),
)
"""How a device reads its file, as far as a run may say it."""
SETTINGS: Mapping[str, Check] = {
    "algorithm": word(*ALGORITHMS),
    "experiment": text(200),
    "seed": whole(),
    "input-shape": listed(whole(0), 8),
    "num-classes": whole(high=100_000),
}
"""What stays the same all run long; the keys are read apart."""
RECORD: Mapping[str, Check] = {
    "round": whole(),
    "exchange": text(100),
    "frozen": text(FINGERPRINT),
    "sole": flag,
    "users": listed(text(400)),
    "versions": listed(whole()),
    "keep": listed(whole()),
    "weights": listed(number(low=0, high=MOST)),
}
"""What a message says of its own exchange."""
SAID: Mapping[str, Check] = {MEMBERS: text(), COHORT_OPTIONS: listed(text()), BY_USER: flag}
LONGEST = 1000
"""Characters of a key's value, but for lists of columns."""


@dataclass(frozen=True)
class Order:
    """What a device was asked to do, and will."""

    task: Task
    arrays: Arrays
    rows: Arrays


# A task, by itself.


def read_task(content: Any, limits: Limits) -> Task:
    """The task of a message's content, as far as it can be judged without the data."""
    record = content["config"] if isinstance(content, RecordDict) and "config" in content else None
    if not isinstance(record, ConfigRecord):
        raise Refused("the message has no record `config`")
    own = checked({"users": [], "versions": [], "keep": [], **record}, RECORD, limits)
    if "round" not in own:
        raise Refused("the message says no round")
    try:
        own["keep"] = by_user(own["keep"], len(own["users"]))
    except ValueError as error:
        raise Refused(str(error)) from None
    task = read_settings(text()("settings", record.get("settings"), limits), limits)
    return replace(task, **own)


def read_settings(words: str, limits: Limits) -> Task:
    """What stays the same all run long."""
    found = parsed("settings", words)
    if not isinstance(found, dict) or not isinstance(keys := found.get("keys"), dict):
        raise Refused("settings: not a table with a table `keys`")
    if missing := [name for name in SETTINGS if name not in found]:
        raise Refused(f"settings: no {', '.join(missing)}")
    facts = checked(found, SETTINGS, limits)
    name = facts["algorithm"]
    if limits.strategies and name not in limits.strategies:
        allowed = ",".join(limits.strategies)
        raise Refused(f"strategy={name} is not one of this device's (strategies={allowed})")
    return Task(
        name,
        facts["experiment"],
        facts["seed"],
        tuple(facts["input-shape"]),
        facts["num-classes"],
        device_data=read_keys(CsvKeys, {k: keys[k] for k in COLUMNS if k in keys}, limits),
        train=read_keys(TrainKeys, keys, limits),
        model=read_keys(ModelKeys, keys, limits),
        keys=read_keys(keys_class(name), keys, limits),
        preparation=read_preparation(found.get("preparation")),
    )


def read_preparation(plain: Any) -> Preparation | None:
    """What was agreed on for the columns of tables, if anything is said of it."""
    try:
        return None if plain is None else Preparation.read(plain)
    except BadColumns as why:
        raise Refused(f"preparation: {why}") from None


def read_keys(group: type[K], keys: Mapping[str, Any], limits: Limits) -> K:
    """A group's keys, typed and within the limits; others are let go unread."""
    own = {name: keys[name] for name in names(group) if name in keys}
    for name, value in own.items():
        if type(value) not in (bool, int, float, str):
            raise Refused(f"{name}={shown(value)}: not a value")
        if len(str(value) if type(value) is str else "") > LONGEST and name not in COLUMNS:
            raise Refused(f"{name}: a text of {len(value)} characters, at most {LONGEST} are read")
        if type(value) is int and not -MOST <= value <= MOST:
            raise Refused(f"{name}: a huge number")
    try:
        found = read(group, own)
    except ConfigError as error:
        raise Refused(str(error)) from None
    for f in fields(found):  # type: ignore[arg-type]
        if limit := f.metadata["limit"]:
            limits.check(limit, kebab(f.name), getattr(found, f.name))
    return found


def parsed(name: str, words: str) -> Any:
    """A JSON text of bounded length."""
    try:
        return json.loads(words)
    except (ValueError, RecursionError):
        raise Refused(f"{name}: not JSON") from None


# A task, beside the device's own data.


def admitted(task: Task, node: Node, content: Any, limits: Limits) -> Order:
    """What a message asks of this device's users; Refused if it is not to be done."""
    cls = client_class(task.algorithm)
    options = checked(content["config"], {**USUAL, **cls.takes.options, **SAID}, limits)
    task = replace(task, options=with_row(options, task.algorithm))
    members = check_users(task, node, cls, limits)
    check_data(task, node)
    check_model(task, node, limits)
    each = options_of_each(task, cls, limits)
    check_work(task, node, each, limits)
    from corsage.networks.build import build_network

    network = build_network(task.model, task.shape, task.num_classes, task.seed, node.device)
    size = network.whole.stop
    limits.check("max-parameters", "parameters of the model", size)
    limits.check_space("the models of all users", size * members)
    limits.check_space("matrices of all parameters by all", cls.takes.squares * size**2 * members)
    sizes = {"P": size, "B": network.body.stop, "H": size - network.head.start}
    rows = content.get("rows")
    found = {} if rows is None else arrays_as(rows, cls.takes.rows, sizes, len(task.users))
    if cls.takes.many in found:
        count = found[cls.takes.many].shape[1] * len(task.users)
        limits.check_space("matrices of all parameters by all", count * size**2)
    return Order(
        replace(task, options=rewritten(task, each)),
        arrays_as(content.get("arrays"), cls.takes.shared, sizes),
        found,
    )


def with_row(options: dict[str, Any], algorithm: str) -> dict[str, Any]:
    """The options, of which the row names a file: it is the algorithm's, and what it was asked."""
    row = options.get("row", "")
    if row and not re.fullmatch(rf"{re.escape(algorithm)}(\+[a-z]{{1,12}})?", row):
        raise Refused(f"row={shown(row)}: not one of {algorithm}'s")
    return options


def check_users(task: Task, node: Node, cls: type[Client[Any]], limits: Limits) -> int:
    """Refuse users who are not this device's; how many there are in all."""
    users, own = task.users, set(node.users)
    if not users or len(set(users)) < len(users):
        raise Refused("users: none, or one of them twice")
    if len(task.versions) != len(users) or len(task.weights) not in (0, len(users)):
        numbers = f"{len(task.versions)} versions and {len(task.weights)} weights"
        raise Refused(f"{numbers} for {len(users)} users")
    if not cls.cohorts:
        check_own(users, own)
        return len(users)
    members = parsed(MEMBERS, task.options.get(MEMBERS, "{}"))
    if not isinstance(members, dict):
        raise Refused(f"{MEMBERS}: not a table")
    check_own([name for name in users if name not in members and is_new(task, name)], own)
    for name, value in members.items():
        group = listed(text(400))(f"{MEMBERS} of {shown(name)}", value, limits)
        if not group or len(set(group)) < len(group):
            raise Refused(f"{MEMBERS} of {shown(name)}: none, or one of them twice")
        check_own(group, own)
    return len(own)


def is_new(task: Task, name: str) -> bool:
    """Whether a cohort has no state here, which would say who its users are."""
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
    if model not in limits.models and not (model in BUILT_IN and ZOO in limits.models):
        allowed = ",".join(limits.models)
        raise Refused(f"model={model} is not one of this device's (models={allowed})")
    if model not in BUILT_IN:
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
    own, keys = node.data, task.model
    of_ours = ":" not in keys.model and not is_name(keys.model)
    if not own.shape or own.facts is not None or (of_ours and not keys.frozen):
        return ""
    try:
        check_model(replace(task, shape=own.shape, num_classes=own.num_classes), node, limits)
        from corsage.networks.build import build_network

        network = build_network(keys, own.shape, own.num_classes, task.seed, node.device)
    except (ConfigError, ModelError):
        return ""
    return network.vector.fixed.fingerprint


def check_work(task: Task, node: Node, each: list[dict[str, Any]], limits: Limits) -> None:
    """Refuse a plan of batches that would not fit into memory."""
    keys, n, asked = task.train, samples(node), [int(task.options.get("adapt-epochs", 0))]
    if task.options.get("fine-tune"):
        limits.check(EPOCHS, "fine-tune-epochs", keys.fine_tune_epochs)
        asked.append(keys.fine_tune_epochs)
    epochs = max([*limited(keys, EPOCHS), *limited(task.keys, EPOCHS), *asked, 1])
    often = max([*limited(task.keys, STEPS), 1])
    batch = min(keys.batch_size, n)
    walks = [sum(run[1] for run in options.get("walk", ())) for options in each]
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


def options_of_each(task: Task, cls: type[Client[Any]], limits: Limits) -> list[dict[str, Any]]:
    """What is said to each cohort, if anything is."""
    words = task.options.get(COHORT_OPTIONS, [])
    if words and len(words) != len(task.users):
        raise Refused(f"{COHORT_OPTIONS}: {len(words)} for {len(task.users)} cohorts")
    found = [parsed(COHORT_OPTIONS, one) for one in words]
    if not all(isinstance(one, dict) for one in found):
        raise Refused(f"{COHORT_OPTIONS}: not tables")
    return [checked(one, {**USUAL, **cls.takes.options}, limits) for one in found]


def rewritten(task: Task, each: list[dict[str, Any]]) -> dict[str, Any]:
    """The options of a task, those of cohorts as they were read."""
    own = {COHORT_OPTIONS: [json.dumps(options) for options in each]} if each else {}
    return {**task.options, **own}


def experiment_of(task: Task) -> str:
    """Where a task's states are: no algorithm reads what another one kept.

    What one of them keeps to itself is what another one sends.
    """
    owners = [name for name in ALGORITHMS if task.experiment.startswith(f"{name}-")]
    if max(owners, key=len, default="") == task.algorithm:
        return task.experiment
    return f"{task.algorithm}-of-{task.experiment}"
