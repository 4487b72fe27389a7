"""The package `corsage` and nothing else, from wherever it is imported."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import corsage

ROOT = Path(corsage.__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FLOORS = {"core", "networks", "solvers", "datasets", "strategies", "clients", "app"}
"""What a run imports: on a device nothing else is needed."""
IMPORT = "import corsage; print(corsage.__file__, corsage.FedRep.name)"


def run(*words: str, cwd: Path | None = None, path: str = "") -> str:
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        words, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def modules(folders: set[str]) -> set[str]:
    """The Python files of some folders of the checkout."""
    files = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix() for path in files}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    return next(folder.glob("*.whl"))


def test_the_wheel_has_one_top_level_name(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"corsage", f"corsage-{corsage.__version__}.dist-info"}
    inside = {name.removeprefix("corsage/") for name in names if ".dist-info/" not in name}
    packages = modules(FLOORS | {"experiments", "benchmarks"})
    others = {"__init__.py", "run_simulation.py", "py.typed", "benchmarks/house.toml"}
    assert inside == {*packages, *others}


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


USER = """\
import corsage
from corsage import Config, FedRep

strategy = FedRep(num_users=20)
reveal_type(strategy)
reveal_type(Config.parse())
Config.parse().rounds
corsage.FedFoo
"""
ALONE = """\
[mypy]
strict = true
[mypy-torch.*,flwr.*,numpy.*,scipy.*,sklearn.*,matplotlib.*,rich.*]
follow_imports = skip
"""
"""As a user checks a script, but for what takes long: the packages that ours builds on."""


@pytest.mark.slow  # mypy reads all of it
def test_a_users_type_checker_sees_types(wheel: Path, tmp_path: Path) -> None:
    """And a mistake; the wheel lies where pip puts it, beside all that is installed here."""
    venv.create(tmp_path / "venv")
    (site,) = (tmp_path / "venv").glob("[Ll]ib/**/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    (site / "others.pth").write_text(str(Path(pytest.__file__).parents[1]))
    (tmp_path / "script.py").write_text(USER)
    (tmp_path / "mypy.ini").write_text(ALONE)
    python = next((tmp_path / "venv").glob("[bS]*/python*"))
    command = [sys.executable, "-m", "mypy", "--python-executable", str(python), "script.py"]
    environment = {**os.environ, "PYTHONPATH": "", "MYPYPATH": ""}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    shown = [line.partition(": ")[2] for line in done.stdout.splitlines()]
    assert shown[:2] == [
        'note: Revealed type is "corsage.strategies.fedrep.fedrep.FedRep"',
        'note: Revealed type is "corsage.core.configuration.config.Config"',
    ], done.stdout + done.stderr
    assert shown[2].startswith('error: "Config" has no attribute "rounds"')
    assert 'no attribute "FedFoo"' in shown[3] and len(shown) == 5


def test_the_app_bundle_holds_the_app(tmp_path: Path) -> None:
    """What `flwr run` sends: small, importable on its own, with the apps that it names."""
    from flwr.cli.build import build_fab_from_disk

    bundle = tmp_path / "app.fab"
    bundle.write_bytes(build_fab_from_disk(ROOT))
    assert bundle.stat().st_size < 10 * 2**20
    zipfile.ZipFile(bundle).extractall(tmp_path / "fab")
    inside = {p.relative_to(tmp_path / "fab").as_posix() for p in (tmp_path / "fab").rglob("*.py")}
    assert inside == {*modules(FLOORS), "corsage.py", "run_simulation.py"}
    project = tomllib.loads((tmp_path / "fab" / "pyproject.toml").read_text())
    components = project["tool"]["flwr"]["app"]["components"]
    assert components == PROJECT["tool"]["flwr"]["app"]["components"]
    lines = [
        f"from {r.replace(':', ' import ')} as app; print(type(app).__name__)"
        for r in components.values()
    ]
    code = "\n".join([*lines, "import corsage; print(corsage.__file__)"])
    out = run(sys.executable, "-c", code, cwd=tmp_path, path=str(tmp_path / "fab"))
    assert out.split() == ["ServerApp", "ClientApp", str(tmp_path / "fab" / "corsage.py")]


def test_the_flower_hub_would_take_the_app(tmp_path: Path) -> None:
    """Its own checks, before an upload: the bundle's format, versions, licence, files and sizes.

    What is uploaded is the last commit without tests, as CONTRIBUTING.md says: the hub's limit on
    files is none on tests then. It runs there, and nothing that README.md links to is left out.
    """
    from flwr.cli.app_cmd.publish import _collect_file_paths, _validate_files
    from flwr.cli.build import build_fab_from_files
    from flwr.cli.utils import collect_files

    words = ["git", "archive", "--prefix=app/", "HEAD", "--", ".", ":!tests/*/*"]
    assert shlex.join(words) in (ROOT / "CONTRIBUTING.md").read_text()
    packed = subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(tmp_path)], input=packed, check=True)
    app = tmp_path / "app"
    bundle, facts = build_fab_from_files(collect_files(app))
    assert (facts.fab_format_version, facts.flwr_version_min) == (1, "1.41")
    files = zipfile.ZipFile(io.BytesIO(bundle)).namelist()
    assert {"README.md", "LICENSE", "pyproject.toml"} <= {*files}
    _validate_files(_collect_file_paths(app))
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (app / "README.md").read_text())
    assert links and not [link for link in links if not (app / link).exists()]
    assert run(sys.executable, "-c", IMPORT, cwd=app).split()[1] == "fedrep"
    assert len(PROJECT["project"]["description"]) <= 200
