"""Files of models on a disk that is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corsage.app.results.header import Header
from corsage.app.results.rowfile import RowFile, encoded, joined

HEAD = Header("fedrep", "fedrep", 1, ("a", "b"), True, 1, {"model": "linear"}, (3,), 2, 0)
PIECE = RowFile(encoded(HEAD, {"users/w": np.ones((2, 100_000), np.float32)}))


def test_room_is_there_before_it_is_written_to(tmp_path: Path) -> None:
    target = tmp_path / "models" / "fedrep"
    joined(HEAD, [PIECE], target)
    info = target.stat()
    assert RowFile(target).row("users/w", 1).sum() == 100_000
    assert info.st_blocks * 512 >= info.st_size > 800_000


def test_a_full_disk_is_an_error_and_not_the_end_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*fedrep'"):
        joined(HEAD, [PIECE], tmp_path / "fedrep")
    assert not list(tmp_path.iterdir())
