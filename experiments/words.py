"""The words of a command line with options."""

from __future__ import annotations

import argparse
from typing import NoReturn

from corsage.core.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, as everywhere in Corsage."""

    def error(self, message: str) -> NoReturn:
        """Leave the complaint to the caller."""
        raise ConfigError(f"{message}.")
