"""What importing the package does, and does not do."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import probseq.settings, probseq.transformers", "torch"),
        ("import probseq.kernels, probseq.gaussians, probseq.fourier, probseq.linalg", "pytest"),
    ],
)
def test_importing_does_not_load(statement, absent):
    program = f"import sys\n{statement}\nassert {absent!r} not in sys.modules"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
