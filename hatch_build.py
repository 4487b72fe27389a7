"""Build hook: in a wheel `corsage.py` is the package's `__init__.py`.

The folders are mapped in pyproject.toml; single files can only be mapped by force, and forced files
would be copied into an editable install and go stale there. So only real wheels get them.
"""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelFiles(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the single files of the package to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """The targets get the prefix `corsage/` that all sources have."""
        if version == "standard":  # and not "editable"
            build_data["force_include"] |= {
                "corsage.py": "__init__.py",
                "run_simulation.py": "run_simulation.py",
                "py.typed": "py.typed",
            }
