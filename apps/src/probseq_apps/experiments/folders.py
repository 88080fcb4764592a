"""The runs of `classify` and `regress`."""

import sys
from collections.abc import Callable, Sequence

from probseq_apps.engine import distributed
from probseq_apps.experiments.methods import BASE_METHODS, MethodSpec

# Patterns of what goes when an experiment is overwritten.
PARTS = tuple(f"{name}/seed-*" for name in BASE_METHODS)


def run_all(
    methods: Sequence[MethodSpec],
    seeds: Sequence[int],
    *,
    is_finished: Callable[[MethodSpec, int], bool],
    run: Callable[[MethodSpec, int], None],
    hint: str,
) -> None:
    """Do the runs that are not finished yet, seed by seed.

    Args:
        methods: what to train.
        seeds: each method is trained once per seed.
        is_finished: whether a method with a seed is trained and its predictions are stored.
        run: trains a method with a seed and stores its predictions.
        hint: the command that goes on where a stopped experiment was.
    """
    main = distributed.is_main()
    jobs = [(spec, seed) for seed in seeds for spec in methods]
    for number, (spec, seed) in enumerate(jobs, 1):
        finished = distributed.broadcast(main and is_finished(spec, seed))
        if main:
            state = ": finished before" if finished else ""
            print(f"[{number}/{len(jobs)}] {spec.name}, seed {seed}{state}", flush=True)
        if not finished:
            try:
                run(spec, seed)
            except (SystemExit, KeyboardInterrupt):
                if main:
                    print(f"stopped; go on with: {hint}", file=sys.stderr)
                raise
