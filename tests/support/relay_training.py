"""A training that reports nowhere itself and is relayed whole, for a process of its own.

python tests/support/relay_training.py FOLDER TRACKER...

Writes the trainer's ``log_history`` to ``history.json`` in the folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ratioscope_integrations.trainers.trl.callback import RatioscopeCallback
from tests.support.fake_engine import make_trainer

SECRET = "hf_" + "Rk4" * 12


def main(folder: Path, trackers: list[str]) -> None:
    """Trains four steps with an evaluation after every second."""
    trainer = make_trainer(
        folder / "out",
        eval_rows=8,
        max_steps=4,
        eval_strategy="steps",
        eval_steps=2,
        hub_token=SECRET,
        run_name="relayed",
    )
    callback = RatioscopeCallback(trainer, report_to=trackers, relay=True)
    trainer.add_callback(callback)
    trainer.train()
    assert not callback.recorder.incidents.counts, callback.recorder.incidents.counts
    (folder / "history.json").write_text(json.dumps(trainer.state.log_history))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
