"""A cache of somebody else, which cannot even be looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from corsage.datasets.dealing.cache import read_folder


def test_a_folder_that_may_not_be_looked_at_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refused)
    assert read_folder(tmp_path / "data") is None
