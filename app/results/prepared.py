"""How columns of a table become a model's inputs, where a file of models says so."""

from __future__ import annotations

from corsage.app.results.header import Header
from corsage.core.errors import CheckpointError
from corsage.core.tables.column_facts import BadColumns
from corsage.core.tables.preparation import Preparation

__all__ = ["Preparation", "preparation_of"]


def preparation_of(head: Header) -> Preparation | None:
    """The preparation that a header names."""
    if head.preparation is None:
        return None
    try:
        agreed = Preparation.read(head.preparation)
        fits = (len(agreed.features),) == head.shape
        if not fits or len(agreed.classes) not in (0, head.num_classes):
            raise BadColumns("it is for another model")
    except BadColumns as why:
        raise CheckpointError(f"{head.row}: its preparation is damaged: {why}.") from None
    return agreed
