"""Texts of worst tokens: from a real tokenizer, from failing ones, and in journal, page and trackers."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import ratioscope as rs
from ratioscope.delivery.sync import sync
from ratioscope.runs.read import read
from ratioscope.runs.worst import COLUMNS, WorstOfRun, table_rows
from ratioscope.text import number, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

TEXT = "The café costs 3 €, naïve   people pay\n\n  in 漢字 <b>bold</b>. "
HOSTILE = "</script><script>alert(1)</script>\u202e\u200b\x1b[2J\x00| `x` 👩‍🚀\ud800"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Trains a byte-level tokenizer of ``tokenizers`` with a special token on one sentence."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [TEXT.replace("é", "").replace("€", "")],
        trainers.BpeTrainer(vocab_size=400, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False),
    )
    return made


def observe(recorder: rs.Recorder, ids: Sequence[int], worst: int, *, size: float = 3.0) -> None:
    """Observes one completion of these tokens; the trainer disagrees on one of them."""
    rollout = torch.full((1, len(ids)), -1.0)
    train = rollout + 1e-3 * torch.arange(len(ids))
    train[0, worst] = -1.0 - size
    recorder.observe(train, rollout, torch.ones(1, len(ids)), token_ids=torch.tensor([list(ids)]))


def flush(decode: Any, ids: Sequence[int], worst: int, **options: Any) -> tuple[rs.Record, rs.Recorder]:
    """Returns the record of one completion, and its recorder."""
    with rs.Recorder(decode=decode, **options) as recorder:
        observe(recorder, ids, worst)
        record = recorder.flush(step=1)
    assert record is not None
    return record, recorder


def test_texts_are_parts_of_the_completion(tokenizer: Any) -> None:
    """Every token's text and its neighbours', put together, are a part of the completion's own text."""
    ids = tokenizer.encode(TEXT.replace("é", "e").replace("€", "E")).ids
    for position in range(len(ids)):
        worst = flush(tokenizer, ids, position)[0].worst_tokens[0]
        assert worst.position == position
        assert worst.text == tokenizer.decode([ids[position]])
        whole = f"{worst.before_text}{worst.text}{worst.after_text}"
        assert whole == tokenizer.decode(ids[max(0, position - 4) : position + 3])


def test_special_tokens_and_parts_of_characters_are_visible(tokenizer: Any) -> None:
    """A special token appears by its name, and half a character as the replacement character."""
    end = tokenizer.token_to_id("<|end|>")
    assert flush(tokenizer, [*tokenizer.encode("bold").ids, end], -1)[0].worst_tokens[0].text == "<|end|>"
    halves = tokenizer.encode("é").ids
    assert len(halves) == 2
    for position in (0, 1):
        assert flush(tokenizer, halves, position)[0].worst_tokens[0].text == "\ufffd"


def test_a_leading_space_is_kept() -> None:
    """A token within a text keeps its space even if the tokenizer drops the first space, as sentencepiece does."""
    pieces = {1: " Hello", 2: " wide", 3: " world"}
    record, _ = flush(lambda ids: "".join(pieces[token] for token in ids)[1:], [1, 2, 3], 1)
    worst = record.worst_tokens[0]
    assert (worst.before_text, worst.text, worst.after_text) == ("Hello", " wide", " world")


def raising(ids: Sequence[int]) -> str:
    """Raises for any token."""
    msg = f"unknown {list(ids)}"
    raise KeyError(msg)


@pytest.mark.parametrize(
    ("decode", "text"),
    [
        (raising, None),
        (lambda ids: None, None),
        (lambda ids: b"bytes", None),
        (lambda ids: "\ud800\x00", "\ufffd\x00"),
        (lambda ids: "x" * 5_000_000, "x" * 64 + "…"),
    ],
    ids=["raises", "none", "bytes", "surrogates", "megabytes"],
)
def test_a_failing_function_costs_no_record(
    decode: Callable[[Any], Any], text: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a function returns, the record is kept, with a bounded text or none, and at most one warning."""
    with caplog.at_level(logging.WARNING, "ratioscope"):
        record, _ = flush(decode, [5, 6, 7], 0, output_dir=tmp_path)
    assert {worst.text for worst in record.worst_tokens[:1]} == {text}
    assert len(caplog.records) == (text is None)
    with rs.JournalReader(tmp_path) as reader:
        (stored,) = reader.records()
    assert stored.worst_tokens == record.worst_tokens
    assert len(json.dumps(stored.to_json())) < 30_000


class SlowTokenizer:
    """A tokenizer in Python."""

    def decode(self, ids: Sequence[int]) -> str:
        """Must not be called."""
        raise AssertionError


def test_a_tokenizer_in_python_gives_ids_only(caplog: pytest.LogCaptureFixture) -> None:
    """A tokenizer that is not written in Rust is never called, and the worst tokens have their ids."""
    with caplog.at_level(logging.WARNING, "ratioscope"):
        record, recorder = flush(SlowTokenizer(), [5, 6, 7], 0)
    assert (record.worst_tokens[0].token_id, record.worst_tokens[0].text) == (5, None)
    assert not recorder.incidents.counts
    assert not caplog.records


def test_a_fast_tokenizer_of_transformers_decodes_in_rust(tokenizer: Any) -> None:
    """The text of a fast tokenizer of transformers comes from its part in Rust."""

    class Fast(SlowTokenizer):
        backend_tokenizer = tokenizer

    (token,) = tokenizer.encode("people").ids[:1]
    assert flush(Fast(), [token], 0)[0].worst_tokens[0].text == tokenizer.decode([token])


def test_an_object_that_cannot_decode_is_refused() -> None:
    """A recorder raises at once if ``decode`` is neither a tokenizer nor a function."""
    with pytest.raises(TypeError, match="expected a tokenizer, or a function"):
        rs.Recorder(decode="Qwen/Qwen3-8B")  # type: ignore[arg-type]


def test_the_worst_of_a_run_are_those_of_all_windows(tmp_path: Path) -> None:
    """The worst tokens of a run are exactly the largest, from records or from the journal."""
    rng, fed, all_tokens = np.random.default_rng(0), WorstOfRun(), []
    with rs.Recorder(decode=str, output_dir=tmp_path) as recorder:
        for step in range(1, 30):
            rollout = torch.full((4, 12), -1.0)
            d = torch.from_numpy(rng.normal(0, rng.exponential(), (4, 12)).astype(np.float32))
            ids = torch.from_numpy(rng.integers(0, 99, (4, 12)))
            split = "eval" if step % 5 == 0 else "train"
            recorder.observe(rollout + d, rollout, torch.ones(4, 12), token_ids=ids, split=split)
            record = recorder.flush(step=step, split=split)
            assert record is not None
            fed.add(record)
            all_tokens += [(step, split, worst) for worst in record.worst_tokens]
    assert fed.tokens == sorted(all_tokens, key=lambda item: -abs(item[2].log_ratio))[:32]
    stored = read(tmp_path).worst
    assert [(worst.step, worst.split, vars(worst.token)) for worst in stored.tokens] == [
        (step, split, {**vars(token), "row_log_ratio": pytest.approx(token.row_log_ratio, rel=1e-6)})
        for step, split, token in fed.tokens
    ]
    assert [worst.row.row for worst in stored.rows] == [worst.row.row for worst in fed.rows]
    assert stored.last is not None
    assert (stored.last.step, len(stored.last.tokens), len(stored.last.rows)) == (29, 32, 4)
    again = WorstOfRun.from_json(json.loads(json.dumps(stored.to_json())))
    assert (again.tokens, again.rows, again.last) == (stored.tokens, stored.rows, stored.last)
    assert len(table_rows(stored)) == 64


def test_no_character_is_invisible() -> None:
    """Spaces, line breaks, control characters, and characters without width or of direction are all visible."""
    assert visible(" a b  c ") == "␣a b␣␣c␣"
    assert visible("a\n\t\x1b\x7f") == "a↵⇥␛␡"
    assert visible("\u200b\u202e\xa0\u2028\u3164") == "⟨U+200B⟩⟨U+202E⟩⟨U+00A0⟩⟨U+2028⟩⟨U+3164⟩"
    assert visible("\u0301e") == "◌\u0301e"
    assert visible("漢字 é🚀") == "漢字 é🚀"


def hostile_run(folder: Path, **options: Any) -> None:
    """Records a run whose tokens have hostile texts."""
    with rs.Recorder(decode=lambda ids: HOSTILE * len(ids), output_dir=folder, **options) as recorder:
        for step in (1, 2):
            observe(recorder, [7, 8, 9], 1, size=float(step))
            recorder.flush(step=step)


def test_the_page_shows_hostile_tokens_as_text(tmp_path: Path) -> None:
    """The page shows worst tokens with id, position and numbers; their text has no markup or invisible character."""
    pytest.importorskip("plotly")
    from ratioscope.report.page.page import report_html

    hostile_run(tmp_path)
    page = report_html(read(tmp_path))
    section = page[page.index('<section class="worst">') : page.index('<section class="definitions">')]
    assert "<script" not in section
    assert "&lt;/script&gt;" in section
    assert not {"\u202e", "\u200b", "\x1b", "\x00", "\ud800"} & set(section)
    assert "⟨U+202E⟩" in section
    assert "␛" in section
    assert f'<td class="number">{number(-2.0)}</td>' in section
    assert '<td class="number">8</td>' in section
    assert "2 of 3" in section
    assert "step 2" in section


def test_without_texts_there_are_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a tokenizer, page and terminal show ids, and the page tells how to get texts."""
    pytest.importorskip("plotly")
    from ratioscope.cli.main import main

    flush(None, [7, 8, 9], 1, output_dir=tmp_path / "run")
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "run"), "-o", str(page)]) == 0
    assert "⟨7⟩⟨8⟩⟨9⟩" in capsys.readouterr().out
    assert "pass decode=tokenizer" in page.read_text()


@pytest.fixture
def _offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    wandb.teardown()
    yield
    wandb.teardown()


@pytest.mark.trackers
@pytest.mark.usefixtures("_offline")
def test_wandb_has_them_as_a_table(tmp_path: Path, tokenizer: Any) -> None:
    """A W&B run has the table in its summary without a row of history, live or synced later."""
    from tests.support.readback import read_wandb

    ids = tokenizer.encode("people pay").ids
    flush(tokenizer, ids, 1, output_dir=tmp_path / "live", report_to="wandb")
    flush(tokenizer, ids, 1, output_dir=tmp_path / "later")
    assert sync(tmp_path / "later", to=["wandb"]) == {"wandb": 1}
    for folder in (tmp_path / "live", tmp_path / "later"):
        run = read_wandb(folder)
        assert len(run.history) == 1
        assert run.summary["ratioscope/worst_tokens"]["_type"] == "table-file"
        (file,) = folder.rglob("worst_tokens*.table.json")
        table = json.loads(file.read_text())
        assert table["columns"] == list(COLUMNS)
        first = dict(zip(COLUMNS, table["data"][0], strict=True))
        assert (first["worst_of"], first["step"], first["log_ratio"], first["token_id"]) == ("run", 1, -3.0, ids[1])
        assert first["token"] == visible(tokenizer.decode([ids[1]]))
        assert len(table["data"]) == 2 * len(ids)


@pytest.mark.trackers
def test_mlflow_has_them_as_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    """MLflow loads and lists the table, and a report from MLflow alone has the texts."""
    import mlflow

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    ids = tokenizer.encode("people pay").ids
    with rs.Recorder(decode=tokenizer, output_dir=tmp_path / "run") as recorder:
        for step, size in ((1, 3.0), (2, 2.0)):
            observe(recorder, ids, 1, size=size)
            recorder.flush(step=step)
    monkeypatch.chdir(tmp_path)
    assert sync(tmp_path / "run", to=["mlflow"]) == {"mlflow": 2}
    mlflow.set_tracking_uri(uri)
    try:
        client = mlflow.MlflowClient(uri)
        (run,) = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
        table = client.load_table(run.info.experiment_id, "ratioscope/worst_tokens.json", [run.info.run_id])
        assert list(table.columns[: len(COLUMNS)]) == list(COLUMNS)
        assert (table["log_ratio"][0], table["token_id"][0]) == (-3.0, ids[1])
        assert "ratioscope/worst_tokens.json" in run.data.tags["mlflow.loggedArtifacts"]
        assert read(f"mlflow:{run.info.run_id}").worst.tokens == read(tmp_path / "run").worst.tokens
    finally:
        mlflow.set_tracking_uri(None)  # type: ignore[arg-type]


@pytest.mark.trackers
def test_tensorboard_shows_hostile_tokens_as_text(tmp_path: Path) -> None:
    """TensorBoard has the table, in which no character of a token is markup."""
    from tests.support.readback import read_tensorboard

    hostile_run(tmp_path, report_to="tensorboard")
    (events,) = {path.parent for path in tmp_path.rglob("events.out.tfevents*")}
    text = read_tensorboard(events).texts["ratioscope/worst_tokens/text_summary"]
    assert "<script" not in text
    assert all(line.count("|") == len(COLUMNS) + 1 for line in text.splitlines())
