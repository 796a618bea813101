"""Makes docs/gallery/faults.md and its pictures: each cause beside the healthy training that it was made from.

    python scripts/fault_gallery.py               all of it, about ten minutes
    python scripts/fault_gallery.py temperature   one picture
    python scripts/fault_gallery.py --text        the page with its verdicts, and no picture

Trainings are those of tests/support/world, seed 1001, which no threshold was chosen with. Needs Chromium.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from PIL import Image  # noqa: E402
from tests.support.world.kinds import FAULTS, HEALTHY  # noqa: E402
from tests.support.world.training import World, recorded, train  # noqa: E402

import ratioscope as rs  # noqa: E402
from ratioscope.diagnosis import CAUSES, diagnose  # noqa: E402

if TYPE_CHECKING:
    from ratioscope.diagnosis.cause import Cause

KINDS = FAULTS | HEALTHY
PAGE = ROOT / "docs" / "gallery" / "faults.md"
SEED = 1001
TOKEN, SEQUENCE = rs.Correction("token", "truncate", upper=2.0), rs.Correction("sequence", "mask", upper=3.0)
HEAD = f"""# Gallery of faults

One training for each cause of the [diagnosis](../reference/diagnosis.md), beside the same training without the fault: a
softmax policy of 200 tokens that is updated by policy gradients, in bfloat16 on both sides (`tests/support/world`, seed
{SEED}). The verdict is what `ratioscope diagnose` says of it. `python scripts/fault_gallery.py` makes the pictures
again.
"""


@dataclass(frozen=True)
class Exhibit:
    """A fault that is shown.

    Attributes:
        kind: its name in the world.
        figure: key of the figure that shows it.
        config: whether the diagnosis knows the run config.
        rule: the correction.
    """

    kind: str
    figure: str = "histogram"
    config: bool = False
    rule: rs.Correction = TOKEN


EXHIBITS = {
    "logits": Exhibit("wrong sign"),
    "missing_logprobs": Exhibit("engine has NaN", "excluded"),
    "zero_filled": Exhibit("a fifth is 0"),
    "filler_scored": Exhibit("padding is 0"),
    "shifted_alignment": Exhibit("shifted by one"),
    "eos_tokens": Exhibit("last token appended"),
    "speculative_tail": Exhibit("last tokens absurd"),
    "mispaired_rows": Exhibit("a quarter of the rows swapped"),
    "wrong_weights": Exhibit("loads other weights", "kl"),
    "stale_weights": Exhibit("never synced", "kl"),
    "grows_between_syncs": Exhibit("grows between syncs", "kl"),
    "support_truncation": Exhibit("top_p 0.9"),
    "temperature": Exhibit("temperature 0.7"),
    "constant_shift": Exhibit("constant shift"),
    "other_experts": Exhibit("other experts", config=True),
    "starts_at_a_position": Exhibit("noise from a position"),
    "outliers": Exhibit("placeholder -30"),
    "sampling_settings": Exhibit("Qwen's defaults and penalty 1.05", config=True),
    "logprobs_mode": Exhibit("raw at 0.7", config=True),
    "length_collapse": Exhibit("top_p 0.9", "sequence", rule=SEQUENCE),
    "precision_noise": Exhibit("fp8 engine", config=True),
    "unexplained": Exhibit("other template"),
}
"""By cause; the others leave nothing to draw: no token, equal numbers, or a setting without an effect on the ratio."""


KEPT = ("vocabulary", "windows", "rows", "length", "sharpness", "rate", "experts")
"""Properties of a world that its healthy training shares."""


def record(world: World, folder: Path, rule: rs.Correction) -> None:
    """Writes a journal of a training."""
    with rs.Recorder(report_to="none", correction=rule, output_dir=folder) as recorder:
        for window in train(world, SEED):
            recorder.observe(window.train, window.rollout, window.mask)
            recorder.flush(step=window.index + 1)


def draw(cause: str, exhibit: Exhibit, world: World) -> None:
    """Writes the picture of one cause."""
    healthy = replace(World(), **{name: getattr(world, name) for name in KEPT})
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / name for name in ("healthy", "broken")]
        for folder, shown in zip(folders, (healthy, world), strict=True):
            record(shown, folder, exhibit.rule)
        figures = Path(scratch) / "figures"
        command = [sys.executable, "-m", "ratioscope", "compare", *map(str, folders), "--png", str(figures)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        image = Image.open(figures / f"{exhibit.figure}.png").convert("RGB").quantize(32)
        image.resize((image.width // 2, image.height // 2)).save(PAGE.parent / f"fault-{cause}.png", optimize=True)


def verdict(cause: str, exhibit: Exhibit, world: World) -> str:
    """Returns the first finding of the broken training, and that of the cause if it is another one, as quotations."""
    with tempfile.TemporaryDirectory() as scratch:
        record(world, Path(scratch), exhibit.rule)
        with rs.JournalReader(scratch) as journal:
            found = diagnose(journal.records(), recorded(world) if exhibit.config else {}).findings
    shown = [item for item in found if item is found[0] or item.name == cause]
    return "\n>\n".join(f"> {item.level.upper()} {item.name} ({item.confidence}): {item.evidence}" for item in shown)


def section(cause: Cause, exhibit: Exhibit) -> str:
    """Section of the page on one cause."""
    known = "known" if exhibit.config else "unknown"
    return (
        f"## {cause.name}\n\n{cause.meaning[0].upper()}{cause.meaning[1:]}. Shown: *{exhibit.kind}*, "
        f"run config {known}."
        f"\n\n![{cause.name}: healthy and broken](fault-{cause.name}.png)\n\n"
        f"{verdict(cause.name, exhibit, KINDS[exhibit.kind].world)}\n\nRemedy: {cause.remedy}\n"
    )


def main() -> None:
    """Draws the named causes, or all of them and the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("causes", nargs="*", metavar="cause", help=f"any of: {', '.join(EXHIBITS)}")
    parser.add_argument("--text", action="store_true", help="write the page only")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    for name in [] if arguments.text else arguments.causes or EXHIBITS:
        print(name, flush=True)
        draw(name, EXHIBITS[name], KINDS[EXHIBITS[name].kind].world)
    if not arguments.causes:
        sections = [section(cause, EXHIBITS[cause.name]) for cause in CAUSES if cause.name in EXHIBITS]
        PAGE.write_text("\n".join([HEAD, *sections]), encoding="utf-8")


if __name__ == "__main__":
    main()
