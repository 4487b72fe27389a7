"""Corsage: personalised federated learning on Flower. Makes its folder the package `corsage`.

In a checkout the folders beside this file are the sub-packages; in the wheel this file is the
package's `__init__.py` beside the same folders. The public names are loaded when they are used.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

__path__ = [str(Path(__file__).parent)]

from corsage.core.registry import ALGORITHMS
from corsage.core.version import VERSION

if TYPE_CHECKING:
    pass

__version__ = VERSION

PLACES = {
    "Config": "core.config",
    "simulate": "app.simulation",
    "LocalGrid": "app.local_grid",
    "client_app": "app.client_app",
    "make_client_app": "app.client_app",
    "Strategy": "strategies.rounds.base",
    "Callback": "strategies.rounds.callbacks",
}
"""Where the public names are that are no algorithms."""

__all__ = [*PLACES, *(entry.cls for entry in ALGORITHMS.values())]  # noqa: PLE0604 - strings, all of them


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used."""
    if name in PLACES:
        place = import_module(f"corsage.{PLACES[name]}")
        return place.app if name == "client_app" else getattr(place, name)
    for algorithm, entry in ALGORITHMS.items():
        if entry.cls == name:
            return import_module("corsage.strategies").strategy_class(algorithm)
    raise AttributeError(f"corsage has no {name!r}")


def __dir__() -> list[str]:
    """The public names, for completion."""
    return sorted({*globals(), *__all__})
