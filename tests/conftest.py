"""For every test: assertions that explain themselves in the shipped suites; Hypothesis profiles."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("seriatim.contract", "support")
sys.path.append(str(Path(__file__).parent))  # tests/support is imported as `support`: importlib mode adds no path

settings.register_profile("dev", deadline=None, print_blob=True)
settings.register_profile(  # the same examples each time: a red CI is the change's doing
    "ci", settings.get_profile("dev"), derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "dev"))


@pytest.fixture
def rig(tmp_path: Path) -> object:
    """A shop in a folder of the test's own: embedded broker, SQLite, and tables of its own."""
    from support.rig import Rig  # noqa: PLC0415 - unit tests needn't wait for the whole product

    return Rig(tmp_path)
