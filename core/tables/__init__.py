"""Tables: what nodes say of their columns, and what a federation makes of them.

This attaches to the messages and to the opening of a run, where some node has a table.
"""

from corsage.core.tables.agreement import misfit, policy_of
from corsage.core.tables.column_facts import MOST_TABLE_TEXT, BadColumns, TableFacts, read_facts
from corsage.core.tables.preparation import Preparation

__all__ = [
    "MOST_TABLE_TEXT",
    "BadColumns",
    "Preparation",
    "TableFacts",
    "misfit",
    "policy_of",
    "read_facts",
]
