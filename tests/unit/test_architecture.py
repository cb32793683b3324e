"""Imports point one way: cli, dashboard → compensation → core ← adapters (contracts: pyproject.toml)."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def lint_imports(checkout: Path, source: Path) -> subprocess.CompletedProcess[str]:
    """Checks the package in `source` against the contracts in the pyproject.toml of `checkout`."""
    program = "import sys; from importlinter.cli import lint_imports_command as run; run()"
    return subprocess.run(
        [sys.executable, "-c", program, "--no-cache", "--no-logo"],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(source), "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy(tmp_path):
    """A copy of the package to spoil, its links replaced by what they point to."""
    shutil.copytree(ROOT / "src/seriatim", tmp_path / "seriatim", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_package_keeps_every_contract():
    result = lint_imports(ROOT, ROOT / "src")
    assert result.returncode == 0, result.stdout + result.stderr
    assert " 0 broken" in result.stdout


@pytest.mark.parametrize(
    ("importer", "statement", "contract"),
    [
        ("core/planted", "import seriatim.adapters.one", "Imports point one way"),
        ("core/planted", "import seriatim.compensation", "Imports point one way"),
        ("core/planted", "def late():\n    import seriatim.cli", "Imports point one way"),
        ("compensation/planted", "import seriatim.cli", "Imports point one way"),
        ("adapters/one", "import seriatim.compensation", "Imports point one way"),
        ("adapters/one", "from seriatim.adapters import two", "Adapters never import each other"),
        ("compensation/planted", "import seriatim.adapters.one", "An adapter is found by its URL"),
        ("cli/planted", "from seriatim.adapters.one import Broker", "An adapter is found by its URL"),
        ("core/planted", "import pika.adapters", "Broker clients are imported by adapters alone"),
        ("core/planted", "import seriatim.contract", "The contract suites are imported by tests alone"),
    ],
)
def test_a_planted_violation_is_found(copy, importer, statement, contract):
    package = copy / "seriatim"
    for name in ("adapters/one", "adapters/two"):
        (package / f"{name}.py").write_text("Broker = None\n")
    (package / f"{importer}.py").write_text(f"{statement}\n")

    result = lint_imports(copy, copy)

    assert result.returncode == 1, result.stdout + result.stderr
    broken = [line for line in result.stdout.splitlines() if line.endswith("BROKEN")]
    assert any(line.startswith(contract) for line in broken), result.stdout


def test_an_adapter_may_import_core(copy):
    (copy / "seriatim/adapters/one.py").write_text("import seriatim.core\n")
    result = lint_imports(copy, copy)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_links_lead_to_the_top_level_folders():
    package = ROOT / "src/seriatim"
    links = {link.name: link.readlink() for link in package.iterdir() if link.is_symlink()}
    top_level = {name for name in ("core", "adapters", "compensation", "cli", "dashboard") if (ROOT / name).is_dir()}
    assert links == {
        **{name: Path("../..", name) for name in top_level},
        "contract": Path("../../tests/contract"),
    }
