"""What is printed of the keys: pyproject's block and docs/keys.md are the code's, word for word."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from corsage.app import keys
from corsage.core.configuration.config import Config
from corsage.core.configuration.known_keys import defaults
from corsage.core.errors import ConfigError


def test_pyproject_and_documentation_are_as_printed() -> None:
    for path, text in keys.places().items():
        assert path.read_text(encoding="utf-8") == text, "run `python -m corsage.app.keys --write`"


def test_pyproject_has_every_key_with_its_default() -> None:
    """Flower refuses to override a key that is not there."""
    declared = tomllib.loads((keys.CHECKOUT / "pyproject.toml").read_text())["tool"]["flwr"]["app"][
        "config"
    ]
    assert declared == defaults()
    assert [type(v) for v in declared.values()] == [type(v) for v in Config.parse().flat().values()]


def test_the_block_is_put_in_the_place_of_the_old_one(tmp_path: Path) -> None:
    head, tail = '[project]\nname = "x"\n\n', "[tool.ruff]\nline-length = 100\n"
    block = keys.toml()
    for old in (block, keys.HEADER, f"{keys.HEADER}a = 1\n\n# b\nc = '[x]'\n"):
        for rest in ("\n" + tail, ""):
            assert keys.with_block(head + old + rest) == head + block + rest
    with pytest.raises(ConfigError, match="has no line"):
        keys.with_block(head + tail)


def test_written_where_it_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(keys, "CHECKOUT", tmp_path)
    assert keys.run(["--write"]) == 2
    assert "no checkout" in capsys.readouterr().err
    project = tmp_path / "pyproject.toml"
    project.write_text(f"{keys.HEADER}\n[tool.x]\n")
    door = (Path(keys.__file__).parents[1] / "corsage.py").read_text()
    (tmp_path / "corsage.py").write_text(
        door.replace("    from corsage.strategies.ditto import", "    #")
    )
    for folder in ("docs", "core/configuration"):
        (tmp_path / folder).mkdir(parents=True)
    page = tmp_path / "docs" / "strategies.md"
    page.write_text(
        "# All\n\n| strategy | sent | other |\n|---|---|---|\n| `x` | y | z |\n\nEach\n"
    )
    assert keys.run(["--write"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert page.read_text() == f"# All\n\n{keys.strategies()}\nEach\n"
    assert (tmp_path / "corsage.py").read_text() == door
    assert project.read_text() == f"{keys.toml()}\n[tool.x]\n"
    assert (tmp_path / "docs" / "keys.md").read_text() == keys.markdown()
    assert (tmp_path / "core/configuration/keywords.py").read_text() == keys.keywords()
    assert keys.run(["--write"]) == 0
    assert not capsys.readouterr().out


def test_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert keys.run(["--toml"]) == 0
    assert capsys.readouterr().out == keys.toml()
    assert keys.run(["--markdown"]) == 0
    assert capsys.readouterr().out == keys.markdown()
    assert keys.run(["--python"]) == 0
    assert capsys.readouterr().out == keys.keywords()
    assert keys.run(["--help"]) == 0
    assert keys.run([]) == 2
    assert "usage" in capsys.readouterr().out


def test_a_table_has_three_cells_a_row() -> None:
    """A meaning may hold |w|, which would end a cell."""
    rows = [line for line in keys.markdown().splitlines() if line.startswith("|")]
    assert all(line.replace(r"\|", "").count("|") == 4 for line in rows)
    assert any(r"\|w" in line for line in rows)
