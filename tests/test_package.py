"""The package `corsage` and nothing else, from wherever it is imported."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import corsage

ROOT = Path(corsage.__file__).parent
IMPORT = "import corsage; print(corsage.__file__, corsage.FedRep.name)"


def run(*words: str, cwd: Path | None = None, path: str = "") -> str:
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        words, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    return next(folder.glob("*.whl"))


def test_the_wheel_has_one_top_level_name(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"corsage", f"corsage-{corsage.__version__}.dist-info"}
    tracked = run("git", "ls-files", "*.py", cwd=ROOT).split()
    for name in tracked:
        if name.split("/")[0] in {"app", "strategies", "clients", "models", "datasets"}:
            assert f"corsage/{name}" in names


def test_the_wheel_works_where_the_checkout_is_not(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    out = run(sys.executable, "-c", IMPORT, cwd=tmp_path, path=str(tmp_path / "site"))
    assert out.split() == [str(tmp_path / "site" / "corsage" / "__init__.py"), "fedrep"]
    words = ["num-rounds=1", "num-users=4", "strategy=local", f"run-dir={tmp_path}/runs"]
    command = [sys.executable, "-m", "corsage.run_simulation", *words]
    assert "Run folder" in run(*command, cwd=tmp_path, path=str(tmp_path / "site"))


def test_an_editable_install_follows_the_checkout(tmp_path: Path) -> None:
    """A .pth file to the checkout, and no copied module that could go stale."""
    code = (
        "from hatchling.build import build_editable; import sys; print(build_editable(sys.argv[1]))"
    )
    run(sys.executable, "-c", code, str(tmp_path), cwd=ROOT)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        files = [name for name in archive.namelist() if ".dist-info/" not in name]
        assert [Path(name).suffix for name in files] == [".pth"]
        assert Path(archive.read(files[0]).decode().strip()).resolve() == ROOT.resolve()


def test_from_the_checkout_the_installed_datasets_wins(tmp_path: Path) -> None:
    """Hugging Face's `datasets` is what `import datasets` means, wherever our folder is."""
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "__init__.py").write_text("me = 'installed'")
    code = "import datasets; print(datasets.me)"
    out = run(sys.executable, "-c", code, cwd=ROOT, path=f"{ROOT}{os.pathsep}{tmp_path}")
    assert out.strip() == "installed"
    out = run(sys.executable, "-c", IMPORT, cwd=ROOT, path="")
    assert out.split()[1] == "fedrep"


def test_the_app_bundle_holds_the_app(tmp_path: Path) -> None:
    """What `flwr run` sends: small, importable on its own, with the apps that it names."""
    import tomllib

    from flwr.cli.build import build_fab_from_disk

    bundle = tmp_path / "app.fab"
    bundle.write_bytes(build_fab_from_disk(ROOT))
    assert bundle.stat().st_size < 10 * 2**20
    zipfile.ZipFile(bundle).extractall(tmp_path / "fab")
    project = tomllib.loads((tmp_path / "fab" / "pyproject.toml").read_text())
    components = project["tool"]["flwr"]["app"]["components"]
    for reference in components.values():
        module, name = reference.split(":")
        code = f"import {module} as m; print(type(m.{name}).__name__, m.__file__)"
        out = run(sys.executable, "-c", code, cwd=tmp_path, path=str(tmp_path / "fab"))
        assert str(tmp_path / "fab") in out
