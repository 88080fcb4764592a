"""Small runs, in as many processes as torchrun starts.

ranks_run.py FOLDER KIND
"""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from test_image_models import DIFFUSION, HVAE
from test_tokens import TINY

from probseq_apps.engine import distributed, fit, trainer
from probseq_apps.engine.config import Machine
from probseq_apps.experiments import image_models, tokens
from probseq_apps.experiments.image_models import DIFFUSION_WORKFLOW, HVAE_WORKFLOW
from probseq_apps.experiments.tokens import WORKFLOW
from probseq_apps.options import Options
from probseq_apps.run import run

KINDS = {
    "diffusion": (DIFFUSION_WORKFLOW, DIFFUSION),
    "hvae": (HVAE_WORKFLOW, HVAE),
    "run": (WORKFLOW, TINY),
}


class NoReport:
    def __init__(self, *_, **__):
        pass

    def write(self, folder):
        return "reported"


def main(folder: Path, kind: str) -> None:
    """Do a run, or go on with it, and store the loss of each step of all trainings."""
    trace, train_step = [], trainer.Trainer.train_step
    kill_at = int(os.environ.get("KILL_AT", "-1"))

    def traced(self):
        done = train_step(self)
        trace.append(self.monitor.latest["loss"])
        if len(trace) == kill_at and distributed.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    trainer.Trainer.train_step = traced
    image_models.generate_report = tokens.generate_report = NoReport
    fit._CHECKPOINT_SECONDS = 0.0
    workflow, settings = KINDS[kind]
    pieces = 1 if kind == "run" else 2  # a codebook learns from each piece
    settings = replace(settings, machine=Machine(device="cpu", accumulate=pieces))
    at = folder / kind
    run(workflow, settings, Options(run_dir=at, resume=at.exists(), workers=1), recipe="r")
    if distributed.is_main():
        (at / "trace.json").write_text(json.dumps(trace))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
    distributed.leave(0)
