"""What names a run."""

from __future__ import annotations

ACCEPTED = (
    "a run's output directory, its journal, a trainer_state.json or a folder that has one, a TensorBoard folder, "
    "mlflow:RUN_ID, wandb:ENTITY/PROJECT/RUN, trackio:PROJECT/RUN or tensorboard:FOLDER"
)
"""What names a run, in words."""
