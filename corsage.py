"""Makes the folder this file lies in importable as the package `corsage`.

In a checkout the folders `app`, `strategies`, `clients`, `models`, `datasets` are its
sub-packages; in the wheel this file is the package's `__init__.py` beside the same folders.
"""

from pathlib import Path

__path__ = [str(Path(__file__).parent)]

from corsage.app.version import VERSION

__version__ = VERSION
