"""Shape annotations are checked while the tests run; real data beside the repository."""

import os
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
from jaxtyping import install_import_hook

install_import_hook(["probseq", "ohsvgp"], "beartype.beartype")
# Ray listens on this machine alone, reports to nobody, and has this environment as it is.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the tests of this folder use models of few inducing variables, which lose much."""
    few = pytest.mark.filterwarnings("ignore::ohsvgp.information_loss.LostInformationWarning")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(few)


@pytest.fixture
def plain_calls() -> Iterator[None]:
    """Calls as users make them: the suite's shape checks don't get in before our messages."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real data sets; tests that need it are skipped without it."""
    for folder in Path(__file__).resolve().parents:
        data = folder.parent / "shared" / "data"
        if (folder / "uv.lock").is_file() and data.is_dir():
            return data
    pytest.skip("no folder shared/data beside the repository")


@pytest.fixture(scope="session")
def solar(shared_data: Path) -> tuple[np.ndarray, np.ndarray]:
    """Solar irradiance: time in decades since 1610.5, standardised values; 391 of each."""
    file = shared_data / "solar_irradiance" / "solar_irradiance.csv"
    table = np.genfromtxt(file, delimiter=",", names=True)
    values = table["tsi_11yr_cycle_plus_background"]
    return (table["year"] - 1610.5) / 10, (values - values.mean()) / values.std()
