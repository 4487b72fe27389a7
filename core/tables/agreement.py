"""The agreement of a federation on one preparation, from what each node says of its table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from corsage.core.configuration.data_keys import BY_USER, FEDERATED, UNSCALED
from corsage.core.configuration.held_objects import is_name
from corsage.core.errors import ConfigError, DataError
from corsage.core.registry import LIKELIHOODS
from corsage.core.tables.column_facts import (
    CATEGORY,
    EMPTY,
    MISSING_LEVEL,
    MOST_COLUMNS,
    MOST_LEVELS,
    NUMBER,
    NUMBERED_CLASSES,
    ColumnFacts,
    Moments,
    TableFacts,
    in_order,
    merged,
    rounded,
)
from corsage.core.tables.preparation import MOST_SCALE, Column, Label, Preparation, standard_of

if TYPE_CHECKING:
    from corsage.core.configuration.config import Config

LEAST_NUMBER, MOST_NUMBER = 1e-150, 1e150
"""Of numbers that are smaller, or larger, no square can be held."""
Built = Callable[[tuple[int, ...], int], Any]
"""The network for samples of a shape, and so many classes; None if there is none."""


def agreed(
    said: Sequence[TableFacts],
    *,
    missing: str,
    scaling: str,
    numbers: bool,
    reference: bool = False,
    centred: bool = True,
) -> Preparation:
    """The preparation for the tables of nodes, which must have the same columns.

    Parameters
    ----------
    said : what each node says of its table.
    missing, scaling : as the keys say.
    numbers : whether labels are numbers.
    reference : the first level of a category has no input, since the intercept stands for it.
    centred : whether the model has an intercept, which makes up for a shift.
    """
    by_name = [{column.name: column for column in one.columns} for one in said]
    names = said[0].names
    columns, scales = [], []
    for name in names:
        own = [one[name] for one in by_name if name in one]
        moments = merged([column.moments for column in own])
        columns.append(column_of(name, own, moments, missing, reference))
        first = standard(name, moments, centred) if scaling == FEDERATED else (0.0, 1.0)
        if columns[-1].kind == CATEGORY:
            scales += [(0.0, 1.0)] * len(columns[-1].levels)
        else:
            scales += [first] + [(0.0, 1.0)] * columns[-1].flagged
    label = label_of([one.label for one in said], numbers, scaling, centred)
    if len(scales) > MOST_COLUMNS:
        raise DataError(
            f"the table has {len(scales)} inputs, the most are {MOST_COLUMNS}; leave columns with "
            "many words out by drop-columns=..."
        )
    shift, scale = zip(*scales, strict=True) if scales else ((), ())
    return Preparation(tuple(columns), label, missing, scaling, shift, scale, numbers)


def column_of(
    name: str, said: Sequence[ColumnFacts], moments: Moments, missing: str, reference: bool
) -> Column:
    """One column, out of what the nodes say of it."""
    gaps = any(column.gaps for column in said) and missing != "refuse"
    known = any(column.kind != EMPTY for column in said)  # else the flag would be an intercept
    if kind_of(said) != CATEGORY:
        return Column(name, fill=moments.mean, flagged=gaps and known and missing == "flag")
    remedy = f"leave it out by drop-columns={name}, or group its words"
    found = levels_of(name, said, MOST_LEVELS - gaps, remedy)
    levels = tuple(level for level in found if level != MISSING_LEVEL)
    first = levels[0] if reference and levels else ""
    kept = levels[1:] if first else levels
    return Column(name, CATEGORY, kept + (MISSING_LEVEL,) * gaps, first)


def levels_of(name: str, said: Sequence[ColumnFacts], most: int, remedy: str) -> tuple[str, ...]:
    """The words of a column at all nodes, in order; DataError if they are too many."""
    levels = in_order({level for column in said for level in column.levels})
    if len(levels) > most:
        raise DataError(
            f"column {name!r}: {len(levels)} different words, the most are {most}; {remedy}."
        )
    return levels


def kind_of(said: Sequence[ColumnFacts]) -> str:
    """The kind of a column at most nodes; an empty one may be anything, and counts as numbers."""
    kinds = Counter(column.kind for column in said if column.kind != EMPTY)
    return max(sorted(kinds), key=kinds.__getitem__) if kinds else NUMBER


def label_of(said: Sequence[ColumnFacts], numbers: bool, scaling: str, centred: bool) -> Label:
    """The label, out of what the nodes say of it."""
    name = said[0].name
    if not numbers:
        return Label(name, levels_of(name, said, MOST_LEVELS, "is it the right label-column"))
    if scaling != FEDERATED:
        return Label(name)
    shift, scale = standard(name, merged([label.moments for label in said]), centred)
    return Label(name, mean=shift, scale=min(rounded(1 / scale), MOST_SCALE))


def standard(name: str, moments: Moments, centred: bool) -> tuple[float, float]:
    """Shift and scale of a column; DataError if its numbers are all but 0, or all but infinite."""
    size = max(moments.std, abs(moments.mean))
    if size and not LEAST_NUMBER <= size <= MOST_NUMBER:
        what, square = ("larger", "infinite") if size > 1 else ("smaller", "0")
        raise DataError(
            f"column {name!r}: its numbers are about {size:.0e}, and their squares {square}; "
            f"write it in a {what} unit."
        )
    return standard_of(moments, centred)


def misfit(preparation: Preparation, said: TableFacts) -> str:
    """Why a node's table is not of the kind that was agreed on; empty if it is."""
    wanted, own = set(preparation.names), set(said.names)
    if wanted != own:
        more, less = ", ".join(sorted(own - wanted)[:5]), ", ".join(sorted(wanted - own)[:5])
        parts = [f"has {more} besides"] * bool(more) + [f"lacks {less}"] * bool(less)
        return f"its table {' and '.join(parts)}, the others' is without that"[:280]
    kinds = {column.name: column.kind for column in preparation.columns}
    for column in said.columns:
        if column.kind not in (EMPTY, kinds[column.name]):
            what = {NUMBER: "numbers", CATEGORY: "words"}
            return (
                f"its column {column.name!r} has {what[column.kind]}, the others' "
                f"{what[kinds[column.name]]}"
            )
    if said.label.kind == NUMBERED_CLASSES and preparation.classes:
        return f"its labels are numbered, the others' are words: {preparation.classes[0]}, ..."
    if said.label.kind == CATEGORY and not preparation.classes:
        return "its labels are words, the others' are numbered"
    if unknown := [name for name in said.label.levels if name not in preparation.classes]:
        return f"its class {unknown[0]!r} is not among those that the run began with"
    return ""


@dataclass(frozen=True)
class Policy:
    """The preparation of tables that the keys ask for.

    Parameters
    ----------
    missing, scaling : keys of the same names.
    centred : whether there is an intercept, which makes up for a shift.
    reference : whether the first level of a category has no input, as the intercept stands for it.
    likelihood : whether labels are those of a family of likelihoods: they keep their unit.
    own_model : whether the model is none of Corsage's.
    """

    missing: str = "refuse"
    scaling: str = FEDERATED
    centred: bool = True
    reference: bool = False
    likelihood: bool = False
    own_model: bool = False

    def agree(
        self, said: Sequence[TableFacts], num_classes: int, network: Built | None = None
    ) -> Preparation:
        """The preparation for these tables: their columns are those that most of them have.

        Where the model, which `network` builds, takes words, cells are numbers of words, and stay.
        """
        names = Counter(frozenset(one.names) for one in said)
        usual = max(names, key=lambda n: (names[n], sorted(n)))
        same = [one for one in said if frozenset(one.names) == usual]
        found = self._for(same, self.scaling, num_classes)
        if network is None or not self.own_model or self.scaling == UNSCALED:
            return found
        model = network((len(found.features),), len(found.classes) or num_classes)
        takes_words = model is not None and model.tokens
        return self._for(same, UNSCALED, num_classes) if takes_words else found

    def _for(self, said: Sequence[TableFacts], scaling: str, num_classes: int) -> Preparation:
        found = agreed(
            said,
            missing=self.missing,
            scaling=scaling,
            numbers=not num_classes,
            reference=self.reference,
            centred=self.centred,
        )
        return (
            replace(found, label=Label(found.label.name))
            if self.likelihood and not num_classes
            else found
        )


def policy_of(config: Config) -> Policy:
    """The policy of a run."""
    keys: Any = config.device_data
    linear = config.model.model == "linear"
    likelihood = config.model.loss in LIKELIHOODS
    if likelihood and keys.scaling == BY_USER:
        raise ConfigError(
            f"scale=user: labels of loss={config.model.loss} keep their unit; set scale=federated."
        )
    return Policy(
        keys.missing,
        keys.scaling,
        centred=not linear or config.model.intercept,
        reference=linear and config.model.intercept,
        likelihood=likelihood,
        own_model=":" in config.model.model or is_name(config.model.model),
    )
