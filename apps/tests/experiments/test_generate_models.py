"""What `generate diffusion` and `generate hvae` share."""

import pytest

from probseq_apps.experiments.generate_models import told_steps


@pytest.mark.parametrize(("steps", "told"), [(0, "0 steps"), (1, "1 step"), (1500, "1,500 steps")])
def test_one_step_is_no_steps(steps, told):
    assert told_steps(steps) == told
