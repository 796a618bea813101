"""Makes the pictures of docs/gallery from real runs: GRPO with vLLM on CPU, the tiny model of the demo.

    python scripts/gallery.py            all of it, about ten minutes
    python scripts/gallery.py bf16       one comparison; its runs are made anew

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

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "build" / "gallery"
PICTURES = ROOT / "docs" / "gallery"


@dataclass(frozen=True)
class Comparison:
    """Runs that are compared.

    Attributes:
        runs: options of examples/grpo_vllm.py by run name.
        figures: keys of the figures that the gallery shows.
    """

    runs: dict[str, list[str]]
    figures: tuple[str, ...]


COMPARISONS = {
    "modes": Comparison(
        {mode: ["--mode", mode] for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")},
        ("modified", "ess", "fan"),
    ),
    "bf16": Comparison({"fp32_trainer": [], "bf16_trainer": ["--bf16"]}, ("heat", "fan", "kl")),
    "top_p": Comparison({"top_p_1.0": [], "top_p_0.8": ["--top-p", "0.8"]}, ("heat", "fan", "modified")),
}


def train(name: str, options: list[str], steps: int) -> Path:
    """Runs the example anew and returns the run's directory."""
    folder = RUNS / name
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "examples/grpo_vllm.py", *options, "--run-name", name, "--report-to", "none"]
    print(f"== {name}", flush=True)
    subprocess.run([*command, "--steps", str(steps), "--output-dir", str(RUNS)], cwd=ROOT, check=True)
    return folder


def draw(name: str, comparison: Comparison, folders: list[Path]) -> None:
    """Writes the chosen figures of one comparison."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "ratioscope", "compare", *map(str, folders), "--png", scratch]
        subprocess.run(command, cwd=ROOT, check=True)
        PICTURES.mkdir(parents=True, exist_ok=True)
        for figure in comparison.figures:
            shutil.copyfile(Path(scratch) / f"{figure}.png", PICTURES / f"{name}-{figure}.png")


def main() -> None:
    """Makes what the command line names, or everything."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="comparison", help=f"any of: {', '.join(COMPARISONS)}")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    for name in arguments.names or COMPARISONS:
        comparison = COMPARISONS[name]
        draw(name, comparison, [train(run, options, arguments.steps) for run, options in comparison.runs.items()])


if __name__ == "__main__":
    main()
