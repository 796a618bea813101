"""Makes the pictures of docs/gallery from real runs: GRPO with vLLM on CPU and the demo's tiny model.

    python scripts/gallery.py            all of it, about ten minutes
    python scripts/gallery.py bf16       one comparison, with new runs

Runs stay in build/gallery. Needs the environment of scripts/setup.sh, and Chromium for the pictures.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "build" / "gallery"
PICTURES = ROOT / "docs" / "gallery"


@dataclass(frozen=True)
class Comparison:
    """A comparison of runs.

    Attributes:
        runs: options of examples/grpo_vllm.py, by name of the run.
        figures: keys of the figures in the gallery.
    """

    runs: dict[str, list[str]]
    figures: tuple[str, ...]


COMPARISONS = {
    "modes": Comparison(
        {mode: ["--mode", mode] for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")},
        ("modified", "ess", "fan"),
    ),
    "bf16": Comparison({"fp32_trainer": [], "bf16_trainer": ["--bf16"]}, ("heat-token-1", "heat-token-2", "histogram")),
    "top_p": Comparison(
        {"top_p_1.0": [], "top_p_0.8": ["--top-p", "0.8"]}, ("heat-token-1", "heat-token-2", "histogram")
    ),
}


def train(name: str, options: list[str], steps: int) -> None:
    """Trains one run again."""
    shutil.rmtree(RUNS / name, ignore_errors=True)
    command = [sys.executable, "examples/grpo_vllm.py", *options, "--run-name", name, "--report-to", "none"]
    print(f"== {name}", flush=True)
    subprocess.run([*command, "--steps", str(steps), "--output-dir", str(RUNS)], cwd=ROOT, check=True)


def draw(name: str, comparison: Comparison, folders: list[Path]) -> None:
    """Writes the chosen figures of one comparison."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "ratioscope", "compare", *map(str, folders), "--png", scratch]
        subprocess.run(command, cwd=ROOT, check=True)
        PICTURES.mkdir(parents=True, exist_ok=True)
        for figure in comparison.figures:
            image = Image.open(Path(scratch) / f"{figure}.png").convert("RGB").quantize(64)
            image.save(PICTURES / f"{name}-{figure}.png", optimize=True)


def main() -> None:
    """Makes the named comparisons, or all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="comparison", help=f"any of: {', '.join(COMPARISONS)}")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--keep-runs", action="store_true", help="draw the existing runs of build/gallery")
    arguments = parser.parse_args()
    for name in arguments.names or COMPARISONS:
        runs = COMPARISONS[name].runs
        if not arguments.keep_runs:
            for run, options in runs.items():
                train(run, options, arguments.steps)
        draw(name, COMPARISONS[name], [RUNS / run for run in runs])


if __name__ == "__main__":
    main()
