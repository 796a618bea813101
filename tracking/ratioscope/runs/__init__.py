"""Reading a run back from anywhere, in one type; judges nothing."""

from __future__ import annotations

ACCEPTED = (
    "a run's output directory, its journal, a trainer_state.json or a folder that has one, a TensorBoard folder, "
    "mlflow:RUN_ID, wandb:ENTITY/PROJECT/RUN, trackio:PROJECT/RUN or tensorboard:FOLDER"
)
"""Addresses of runs, in words."""
