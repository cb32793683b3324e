"""What a user installs: the package alone, as real files, typed, working where nothing else is."""

import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXTRAS = (
    "seriatim/adapters/",
    "seriatim/contract/",
    "seriatim/core/store/mysql",
    "seriatim/core/beside/redis",
    "seriatim/core/filtering/redis",
    "seriatim/core/locking/redis",
)


def run(*command: object, cwd: Path) -> str:
    """What `command` prints; a failure shows all of it."""
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """The checkout as git has or would take it: links as links, no caches, no earlier builds."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    target = tmp_path_factory.mktemp("clean checkout")
    for name in filter(None, listed.split("\0")):
        source, copy = ROOT / name, target / name
        if source.is_symlink() or source.exists():  # neither: deleted, not yet committed
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy, follow_symlinks=False)
    return target


@pytest.fixture(scope="module")
def modules(checkout):
    """Every file that belongs to the package, by the name that it has in it."""
    package = checkout / "src/seriatim"
    files = {"seriatim/__init__.py", "seriatim/py.typed"}
    for link in filter(Path.is_symlink, package.iterdir()):
        files |= {f"seriatim/{link.name}/{file.relative_to(link)}" for file in link.rglob("*.py")}
    return files


@pytest.fixture(scope="module")
def distributions(checkout, tmp_path_factory):
    """A folder with the sdist, and the wheel that was built from it."""
    target = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", target, checkout, cwd=target)
    return target


@pytest.fixture(scope="module")
def wheel(distributions):
    (path,) = distributions.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """The interpreter of an environment that holds the wheel, what it asks for, and nothing else."""
    folder = tmp_path_factory.mktemp("user") / "venv"
    venv.create(folder, with_pip=True, symlinks=True)
    interpreter = folder / "bin/python"
    run(interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel, cwd=folder)
    return interpreter


def packed(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_the_package_and_nothing_else(wheel, modules):
    assert {"seriatim/core/__init__.py", "seriatim/contract/__init__.py"} <= modules
    assert packed(wheel) == modules


def test_the_sdist_holds_the_package_as_real_files_and_what_builds_it(distributions, modules):
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        members = archive.getmembers()
    assert [member.name for member in members if not (member.isfile() or member.isdir())] == []

    files = {member.name.partition("/")[2] for member in members if member.isfile()}
    beside = {file for file in files if not file.startswith("src/")}
    assert beside == {"LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
    source = {file.removeprefix("src/") for file in files - beside if ".egg-info/" not in file}
    assert source == modules


def test_a_wheel_built_straight_from_a_checkout_is_the_same(checkout, wheel, tmp_path):
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        tmp_path,
        checkout,
        cwd=tmp_path,
    )
    (direct,) = tmp_path.glob("*.whl")
    assert packed(direct) == packed(wheel)


def test_every_module_imports_without_a_broker_client(python, modules, tmp_path):
    """Save what belongs to an extra: adapters and MySQL, which need their client, and the suites, which need pytest."""
    names = [
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in sorted(modules)
        if name.endswith(".py") and not name.startswith(EXTRAS)
    ]
    program = f"import importlib\nfor name in {names}: importlib.import_module(name)"
    run(python, "-W", "error", "-c", program, cwd=tmp_path)


def test_a_users_file_is_type_checked_against_the_wheel(python, tmp_path):
    shutil.copy(ROOT / "tests/typing/user_app.py", tmp_path)
    mypy = (sys.executable, "-m", "mypy", "--strict", "--config-file=", "--python-executable", python)
    run(*mypy, "user_app.py", cwd=tmp_path)


def test_the_command_says_what_it_can_do(python, tmp_path):
    assert "Usage" in run(python.with_name("seriatim"), "--help", cwd=tmp_path)


def test_the_demo_runs_from_the_wheel(python, tmp_path):
    examples = shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    shown = run(python, "-W", "error", "-m", "examples.orders.demo", "--orders", "300", cwd=examples.parent)
    assert "Everything adds up" in shown
