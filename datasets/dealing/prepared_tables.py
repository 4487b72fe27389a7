"""The data of users as the model sees them, by what the federation agreed on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from corsage.core.arrays import Array, Floats
from corsage.core.configuration.data_keys import BY_USER
from corsage.core.errors import DataError
from corsage.core.tables.column_facts import CATEGORY, EMPTY, NUMBERED_CLASSES
from corsage.core.tables.preparation import Preparation
from corsage.datasets.user_data import FederatedData, OwnScales


def prepared(data: FederatedData, preparation: Preparation) -> FederatedData:
    """The same data with the model's inputs and labels in the place of raw cells."""
    facts = data.facts
    assert facts is not None
    place = {column.name: i for i, column in enumerate(facts.columns)}
    if set(place) != set(preparation.names):
        raise DataError("the columns of the data are not those that were agreed on.")
    order = [place[name] for name in preparation.names]
    for column, at in zip(preparation.columns, order, strict=True):
        kind = facts.columns[at].kind
        if CATEGORY in (kind, column.kind) and kind not in (column.kind, EMPTY):
            raise DataError(
                f"column {column.name!r}: words here, numbers elsewhere, or conversely."
            )
    levels = [facts.columns[at].levels for at in order]
    raw = data.x if order == list(range(len(order))) else data.x[:, order]
    inputs = preparation.expanded(raw, levels)
    own = own_scales(data, inputs, preparation) if preparation.scaling == BY_USER else None
    labels, count = labels_of(data, preparation)
    return replace(
        data,
        x=scaled_by_user(data, inputs, own) if own else preparation.scaled(inputs),
        y=labels if own is None else labels_by_user(data, labels, own),
        num_classes=count,
        shift=0.0,
        scale=1.0,
        facts=None,
        preparation=preparation,
        own=own,
    )


def labels_of(data: FederatedData, preparation: Preparation) -> tuple[Array, int]:
    """The labels as the model has them, and the number of classes."""
    assert data.facts is not None
    if not data.num_classes:
        return preparation.standard(data.y), 0
    words = data.facts.label.levels
    if data.facts.label.kind == NUMBERED_CLASSES or not preparation.classes:
        return data.y, data.num_classes
    place = {name: i for i, name in enumerate(preparation.classes)}
    if unknown := [word for word in words if word not in place]:
        raise DataError(f"the class {unknown[0]!r} is none of those that were agreed on.")
    table = np.array([place[word] for word in words], np.int64)
    return table[data.y], len(preparation.classes)


def own_scales(data: FederatedData, inputs: Floats, preparation: Preparation) -> OwnScales:
    """Of every user its own training rows."""
    own = [
        preparation.own(inputs[start:middle], data.y[start:middle])
        for start, middle, _ in data.bounds.tolist()
    ]
    width = len(preparation.features)
    return OwnScales(
        np.array([one.shift for one in own]).reshape(len(own), width),
        np.array([one.scale for one in own]).reshape(len(own), width),
        np.array([(one.label.mean, one.label.scale) for one in own]),
    )


def each_row(data: FederatedData) -> Array:
    """The user that each row is of."""
    return np.repeat(np.arange(len(data.users)), data.bounds[:, 2] - data.bounds[:, 0])


def scaled_by_user(data: FederatedData, inputs: Floats, own: OwnScales) -> Array:
    """Inputs, each by its user's shift and scale, with all digits that the data have."""
    who = each_row(data)
    return (inputs - own.shift[who]) * own.scale[who]


def labels_by_user(data: FederatedData, labels: Array, own: OwnScales) -> Array:
    """Labels that are numbers, each by its user's mean and scale."""
    if data.num_classes:
        return labels
    mean, scale = own.label[each_row(data)].T
    return np.asarray((labels - mean) / scale)
