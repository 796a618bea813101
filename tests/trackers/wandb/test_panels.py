"""``ratioscope panels wandb``: the view refers to existing keys, and is made without a network."""

from __future__ import annotations

import json
import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

import ratioscope as rs
from ratioscope.cli.main import main
from ratioscope.metrics import catalogue
from ratioscope.trackers.registry import names
from ratioscope.trackers.rows import SHOWN
from ratioscope_integrations.trackers.wandb import panels as panels
from tests.support.faults import wandb_online

if TYPE_CHECKING:
    from pathlib import Path

SECTIONS = [
    "Correction at a glance",
    "Raw ratio fan",
    "Histograms over training",
    "Engines' mismatch",
    "Health",
]
CALL = ["panels", "wandb", "--project", "ent/p"]


def spec(folder: Path) -> list[dict[str, Any]]:
    """The sections of the view, as they are written to a file."""
    file = folder / "view.json"
    assert main([*CALL, "--dry-run", str(file)]) == 0
    written = json.loads(file.read_text())
    assert (written["entity"], written["project"], written["displayName"]) == ("ent", "p", "ratioscope")
    sections: list[dict[str, Any]] = written["spec"]["section"]["panelBankConfig"]["sections"]
    return sections


def asked(sections: list[dict[str, Any]]) -> list[list[str]]:
    """The keys that each panel asks for."""
    configs = [panel["config"] for section in sections for panel in section["panels"]]
    return [config.get("metrics") or config["mediaKeys"] for config in configs]


@pytest.fixture
def _unplugged(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection can be made."""

    def refuse(*_: Any) -> None:
        msg = "a connection was tried"
        raise AssertionError(msg)

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)


@pytest.mark.usefixtures("_unplugged")
def test_the_view_is_made_without_a_network(tmp_path: Path) -> None:
    """Every section is there, each panel has a title and a key, and the ratios' axes are logarithmic over the step."""
    sections = spec(tmp_path)
    assert [section["name"] for section in sections] == SECTIONS
    assert all(asked(sections))
    fan = [panel["config"] for panel in sections[1]["panels"]]
    assert all(config["yLogScale"] and config["xAxis"] == "train/global_step" for config in fan)
    titles = [panel["config"]["chartTitle"] for section in sections for panel in section["panels"]]
    assert len(set(titles)) == len(titles) > 15


def test_only_existing_keys_are_used(tmp_path: Path) -> None:
    """Each key is in the catalogue, a histogram, or of a record's health; the headline has both of its forms."""
    health = {f"ratioscope/delivery/{name}/{what}" for name in names() for what in ("queued", "delivered", "failed")}
    histograms = {f"{split}ratioscope/hist/{name}" for split in ("", "eval/") for name in SHOWN}
    headline = catalogue.keys("headline")
    known = catalogue.keys("full") | {f"train/{key}" for key in headline}
    known |= health | histograms | {f"ratioscope/overhead/{what}_ms" for what in ("observe", "flush")}
    keys = {key for panel in asked(spec(tmp_path)) for key in panel}
    assert keys - known == set()
    assert {f"train/{key}" in keys for key in headline & keys} == {True}
    assert histograms <= keys


@pytest.mark.trackers
def test_a_real_run_fills_every_panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every panel has a key that the history of a real run has."""
    rule = rs.Correction("token", "truncate", upper=1.2)
    with wandb_online(monkeypatch) as server:
        options: dict[str, Any] = {"output_dir": tmp_path, "detail": "full", "close_timeout": 60.0}
        with rs.Recorder(report_to="wandb", correction=rule, **options) as recorder:
            for step in (1, 2):
                rollout = -torch.rand(4, 16) - 0.1
                advantages = torch.tensor([1.0, -1.0, 1.0, -1.0])
                recorder.observe(rollout + 0.1, rollout, torch.ones(4, 16), advantages=advantages)
                recorder.flush(step=step)
        (run,) = server.runs.values()
        real = {key for row in run.history for key in row}
        empty = [keys for keys in asked(spec(tmp_path)) if not real & set(keys)]
        assert empty == []


@pytest.mark.trackers
def test_the_address_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Once the view is saved its address is printed."""
    with wandb_online(monkeypatch) as server:
        assert main(CALL) == 0
        assert "UpsertView2" in server.asked
    assert "/ent/p?nw=" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("project", ["p", "/p", "ent/", "a/b/c", ""])
def test_a_wrong_project_is_reported(project: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A project in another form is refused with the expected form."""
    assert main(["panels", "wandb", "--project", project, "--dry-run", "never"]) == 1
    assert "expected ENTITY/PROJECT" in capsys.readouterr().err


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without wandb-workspaces one line names the extra to install."""
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    assert main([*CALL, "--dry-run", "never"]) == 1
    assert 'pip install "ratioscope[panels]"' in capsys.readouterr().err


def test_an_unsupported_version_is_reported() -> None:
    """Without the package's private method, the message names a remedy."""
    with pytest.raises(RuntimeError, match="call without --dry-run"):
        panels.specification(object())


@pytest.mark.trackers
def test_a_missing_login_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a login one line explains how to log in."""
    import wandb

    with wandb_online(monkeypatch):
        monkeypatch.delenv("WANDB_API_KEY")
        monkeypatch.setenv("NETRC", "/nonexistent/netrc")
        wandb.teardown()
        assert main(CALL) == 1
    err = capsys.readouterr().err
    assert "wandb login" in err.splitlines()[-1]
