"""Small runs, in as many processes as torchrun starts.

ranks_run.py FOLDER ACCUMULATE KIND...
"""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from test_image_models import DIFFUSION, HVAE
from test_online_vae import TINY as FILM
from test_tokens import TINY

from ohsvgp.vae import OnlineSVGPVAE
from probseq_apps.engine import distributed, fit, trainer
from probseq_apps.experiments import image_models, online_vae, tokens
from probseq_apps.experiments.image_models import DIFFUSION_WORKFLOW, HVAE_WORKFLOW
from probseq_apps.experiments.tokens import WORKFLOW
from probseq_apps.options import Options
from probseq_apps.run import run
from probseq_apps.settings.generate import Machine

KINDS = {
    "diffusion": (DIFFUSION_WORKFLOW, DIFFUSION),
    "hvae": (HVAE_WORKFLOW, HVAE),
    "run": (WORKFLOW, TINY),
    "vae": (online_vae.WORKFLOW, replace(FILM, training=replace(FILM.training, batch_size=5))),
}


class NoReport:
    def __init__(self, *_, **__):
        pass

    def write(self, folder):
        return "reported"


def main(folder: Path, accumulate: int, *kinds: str) -> None:
    """Do runs, or go on with them, and store the loss of each step of all trainings."""
    trace, train_step = [], trainer.Trainer.train_step
    bound = OnlineSVGPVAE.task_bound
    kill_at = int(os.environ.get("KILL_AT", "-1"))

    def note(loss):
        trace.append(loss)
        if len(trace) == kill_at and distributed.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def traced_bound(self, *arguments):
        value = bound(self, *arguments)
        note(float(value.detach()))
        return value

    def traced(self):
        done = train_step(self)
        note(self.monitor.latest["loss"])
        return done

    trainer.Trainer.train_step = traced
    OnlineSVGPVAE.task_bound = traced_bound
    image_models.generate_report = tokens.generate_report = NoReport
    fit._CHECKPOINT_SECONDS = 0.0
    for kind in kinds:
        trace.clear()
        workflow, settings = KINDS[kind]
        if kind != "vae":
            pieces = 1 if kind == "run" else accumulate  # a codebook learns from each piece
            machine = Machine(device="cpu", accumulate=pieces)
            settings = replace(settings, machine=machine)
        at = folder / kind
        run(workflow, settings, Options(run_dir=at, resume=at.exists(), workers=1), recipe="r")
        if kind == "vae":  # all ranks have the whole state
            assert all(one == trace for one in distributed.gather(trace))
        if distributed.is_main():
            (at / "trace.json").write_text(json.dumps(trace))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
    distributed.leave(0)
