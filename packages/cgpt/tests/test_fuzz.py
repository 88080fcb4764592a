"""Public functions of ``cgpt`` succeed with numbers or refuse by name, whatever they get."""

from hypothesis import strategies as st

import cgpt
from fuzzing.annotations import backbone_targets, derive, instances, small_transformers
from fuzzing.arguments import COUNTS, GENERATORS, bools, images, labels
from fuzzing.fuzz import FuzzSuite, Target

NOT_FUZZED = {
    "CGPTConfig.build": "called by the builders of transformers",
    "CGPTConfig.check": "a part of its constructor",
    "*.from_kernel": "takes another layer's state",
    "SCGPTConfig.build": "called by the builders of transformers",
}
CONFIGS = instances(cgpt.CGPTConfig) | instances(cgpt.SCGPTConfig)
VISION, TEXT = small_transformers(CONFIGS)
ENTRIES = {
    "*Attention": {
        "noise": st.sampled_from([0.1, 0.5]),
        "nugget": st.sampled_from([0.01, 0.1]),
        "max_tokens": st.sampled_from([None, 4]),
    },
    "CorrelatedGPAttention": {"jitter": st.sampled_from([None, 1e-4])},
}
SHORT = "NaN for sequences of fewer than two tokens"
SIMILARITIES = [
    Target(
        cgpt.token_cosine_similarity,
        dict(model=model, inputs=inputs, mask=mask)
        | dict(generator=GENERATORS, num_samples=st.none() | COUNTS),
        non_finite=SHORT,
    )
    for model, inputs, mask in (
        (VISION, images("b 1 4 4"), st.none()),
        (TEXT, labels("b t", "4"), st.none() | bools("b t")),
    )
]
TARGETS = derive(
    [cgpt],
    NOT_FUZZED,
    [*SIMILARITIES, *backbone_targets(CONFIGS)],
    entries=ENTRIES,
    words={"mean_cosine_similarity": SHORT},
)


class TestFuzz(FuzzSuite):
    modules = (cgpt,)
    targets = TARGETS
    reasons = NOT_FUZZED
    calls = 8
