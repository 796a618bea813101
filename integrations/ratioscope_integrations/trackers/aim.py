"""Aim: scalars, native distributions and the config. Requires ``aim``.

Aim keeps runs in a repository, a folder or a server, and no run that is live in the process can be found: pass the
``experiment`` of an ``AimCallback`` to ``AimTracker`` to write to it.
"""

# The client is installed in one of the test layers only:
# pyright: reportMissingImports=false

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any

from ratioscope.trackers.base import prefix_of
from ratioscope_integrations.trackers.client import ClientTracker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratioscope.trackers.base import Row, RunContext


class AimTracker(ClientTracker):
    """Writes to an Aim run. The split is the context ``subset``, as in Aim's own callback, instead of a prefix."""

    name = "aim"
    package = "aim"

    uploads_later = False  # `write` stores the row in the repository

    def _new_identity(self) -> dict[str, str]:
        return {}  # Aim chooses the hash

    def _start(self, context: RunContext, identity: Mapping[str, str]) -> Any:
        """Opens a run in ``AIM_REPO``, else in ``output_dir``, else in the working directory."""
        import aim

        repo = os.environ.get("AIM_REPO") or identity.get("repo")
        if not repo and context.output_dir is not None:
            context.output_dir.mkdir(parents=True, exist_ok=True)
            repo = str(context.output_dir.resolve())
        if not repo or "://" not in repo:
            repo = repo or str(os.getcwd())
            if not aim.Repo.exists(repo):
                aim.Repo.from_path(repo, init=True)
        run = aim.Run(
            run_hash=identity.get("run_id"),
            repo=repo,
            experiment=None if identity else "ratioscope",
            system_tracking_interval=None,
            log_system_params=False,
            capture_terminal_logs=False,
        )
        if context.run_name is not None:
            run.name = context.run_name
        return run

    def _identify(self, run: Any) -> dict[str, str]:
        return {"run_id": run.hash, "repo": _repo(run)}

    def _where(self, run: Any) -> str:
        return f"aim up --repo {shlex.quote(str(_repo(run)))}   (run {run.hash})"

    def _configure(self, run: Any, config: Mapping[str, Any]) -> None:
        run["ratioscope"] = dict(config)

    def _send(self, run: Any, row: Row) -> None:
        import aim

        prefix, context = prefix_of(row.split), {"subset": row.split}
        for key, value in row.scalars.items():
            run.track(value, name=key.removeprefix(prefix), step=row.step, context=context)
        for key, value in row.logs.items():
            run.track(value, name=key.removeprefix("eval_"), step=row.step, context=context)
        for key, bins in row.histograms.items():
            ends = (float(bins.edges[0]), float(bins.edges[-1]))
            shown = aim.Distribution(hist=bins.counts, bin_range=ends)
            run.track(shown, name=key.removeprefix(prefix), step=row.step, context=context)

    def _end(self, run: Any) -> None:
        run.close()


def _repo(run: Any) -> str:
    path = str(run.repo.path)
    return path.removesuffix("/.aim")
