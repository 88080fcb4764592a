"""Public functions of ``kepsvgp`` succeed with numbers or refuse by name, whatever they get."""

from hypothesis import strategies as st

import kepsvgp
from fuzzing.annotations import backbone_targets, derive, instances, small_transformers
from fuzzing.arguments import images
from fuzzing.fuzz import FuzzSuite

NOT_FUZZED = {
    "KEPSVGPConfig.build": "called by the builders of transformers",
    "KEPSVGPConfig.check": "a part of its constructor",
}
SETTINGS = {
    "rank": st.integers(1, 2),
    "layers": st.sampled_from(["last", "all", (0,)]),
    "projection_tokens": st.sampled_from([None, 3]),
    "eta": st.sampled_from([0.0, 10.0]),
}
CONFIGS = instances(kepsvgp.KEPSVGPConfig, {"KEPSVGPConfig": SETTINGS})
ENTRIES = {
    "KEPSVGPConfig": SETTINGS,
    "KernelEigenPairAttention": {n: s for n, s in SETTINGS.items() if n != "layers"},
    "attention_spectrum": {
        "model": small_transformers(CONFIGS)[0],
        "batches": st.lists(st.tuples(images("b 1 4 4")), min_size=1, max_size=2),
    },
}
TARGETS = derive([kepsvgp], NOT_FUZZED, backbone_targets(CONFIGS), entries=ENTRIES)


class TestFuzz(FuzzSuite):
    modules = (kepsvgp,)
    targets = TARGETS
    reasons = NOT_FUZZED
    calls = 8
