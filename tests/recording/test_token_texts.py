"""The text of worst tokens: what a real tokenizer gives, what a bad one cannot do, and where the text arrives."""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import ratioscope as rs
from ratioscope.delivery.sync import sync
from ratioscope.recording import token_texts
from ratioscope.runs.read import read
from ratioscope.runs.worst import COLUMNS, WorstOfRun, table_rows
from ratioscope.text import number
from ratioscope.visible import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

TEXT = "The café costs 3 €, naïve   people pay\n\n  in 漢字 <b>bold</b>. "
HOSTILE = "</script><script>alert(1)</script>\u202e\u200b\x1b[2J\x00| `x` 👩‍🚀\ud800"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """A byte-level tokenizer of ``tokenizers`` with a special token, trained on one sentence."""
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
    """One completion of these tokens; the trainer disagrees on one of them."""
    rollout = torch.full((1, len(ids)), -1.0)
    train = rollout + 1e-3 * torch.arange(len(ids))
    train[0, worst] = -1.0 - size
    recorder.observe(train, rollout, torch.ones(1, len(ids)), token_ids=torch.tensor([list(ids)]))


def flush(decode: Any, ids: Sequence[int], worst: int, **options: Any) -> tuple[rs.Record, rs.Recorder]:
    """The record of one such completion."""
    with rs.Recorder(decode=decode, **options) as recorder:
        observe(recorder, ids, worst)
        record = recorder.flush(step=1)
    assert record is not None
    return record, recorder


def test_texts_are_those_of_the_completion(tokenizer: Any) -> None:
    """Every token's text and its neighbours', put together, are a part of the completion's own text."""
    ids = tokenizer.encode(TEXT.replace("é", "e").replace("€", "E")).ids
    for place in range(len(ids)):
        worst = flush(tokenizer, ids, place)[0].worst_tokens[0]
        assert worst.position == place
        assert worst.text == tokenizer.decode([ids[place]])
        whole = f"{worst.before_text}{worst.text}{worst.after_text}"
        assert whole == tokenizer.decode(ids[max(0, place - 4) : place + 3])


def test_special_tokens_and_parts_of_characters_are_seen(tokenizer: Any) -> None:
    """A special token is shown by its name, and a token that is half a character as the replacement character."""
    end = tokenizer.token_to_id("<|end|>")
    assert flush(tokenizer, [*tokenizer.encode("bold").ids, end], -1)[0].worst_tokens[0].text == "<|end|>"
    halves = tokenizer.encode("é").ids
    assert len(halves) == 2
    for place in (0, 1):
        assert flush(tokenizer, halves, place)[0].worst_tokens[0].text == "\ufffd"


def test_a_space_that_only_neighbours_show_is_kept() -> None:
    """Of a tokenizer that drops a text's first space, as sentencepiece does, a token behind others keeps its own."""
    pieces = {1: " Hello", 2: " wide", 3: " world"}
    record, _ = flush(lambda ids: "".join(pieces[one] for one in ids)[1:], [1, 2, 3], 1)
    worst = record.worst_tokens[0]
    assert (worst.before_text, worst.text, worst.after_text) == ("Hello", " wide", " world")


def raising(ids: Sequence[int]) -> str:
    """Knows no token."""
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
def test_rubbish_costs_no_record(
    decode: Callable[[Any], Any], text: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a tokenizer gives, the record is kept, with a bounded text or none, and one warning at the most."""
    with caplog.at_level(logging.WARNING, "ratioscope"):
        record, _ = flush(decode, [5, 6, 7], 0, output_dir=tmp_path)
    assert {one.text for one in record.worst_tokens[:1]} == {text}
    assert len(caplog.records) == (text is None)
    with rs.JournalReader(tmp_path) as reader:
        (stored,) = reader.records()
    assert stored.worst_tokens == record.worst_tokens
    assert len(json.dumps(stored.to_json())) < 30_000


def test_a_tokenizer_that_hangs_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """A flush waits for a tokenizer once and briefly; while it hangs none waits again."""
    hang = threading.Event()
    with rs.Recorder(decode=lambda ids: str(hang.wait(60))) as recorder, caplog.at_level(logging.WARNING, "ratioscope"):
        started = time.monotonic()
        for step in range(5):
            observe(recorder, [1, 2], 0)
            record = recorder.flush(step=step)
            assert record is not None
            assert record.worst_tokens[0].text is None
        assert time.monotonic() - started < 30
        hang.set()
    assert [entry.getMessage() for entry in caplog.records if "was not ready after" in entry.getMessage()]
    assert recorder.incidents.counts["slow tokenizer"] == 1


def test_a_slow_tokenizer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After three flushes in a row that waited in vain the tokenizer is not called again."""
    monkeypatch.setattr(token_texts, "WAIT_S", 0.01)
    calls = []

    def slow(ids: Sequence[int]) -> str:
        calls.append(ids)
        time.sleep(0.1)
        return "x"

    with rs.Recorder(decode=slow) as recorder:
        for step in range(6):
            observe(recorder, [step, 100], 0)
            recorder.flush(step=step)
            assert recorder._texts is not None
            if recorder._texts._thread is not None:
                recorder._texts._thread.join()
    assert recorder.incidents.counts["slow tokenizer"] == 3
    assert {ids[0] for ids in calls} == {0, 1, 2}


def test_what_cannot_decode_is_refused() -> None:
    """A recorder that is given something else for a tokenizer says so at once."""
    with pytest.raises(TypeError, match="expected a tokenizer, or a function"):
        rs.Recorder(decode="Qwen/Qwen3-8B")  # type: ignore[arg-type]


def test_the_worst_of_a_run_are_those_of_all_windows(tmp_path: Path) -> None:
    """Over many windows the run's worst are exactly the largest, whether fed with records or read from the journal."""
    rng, fed, every = np.random.default_rng(0), WorstOfRun(), []
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
            every += [(step, split, one) for one in record.worst_tokens]
    assert fed.tokens == sorted(every, key=lambda one: -abs(one[2].log_ratio))[:32]
    stored = read(tmp_path).worst
    assert [(one.step, one.split, vars(one.token)) for one in stored.tokens] == [
        (step, split, {**vars(token), "row_log_ratio": pytest.approx(token.row_log_ratio, rel=1e-6)})
        for step, split, token in fed.tokens
    ]
    assert [one.row.row for one in stored.rows] == [one.row.row for one in fed.rows]
    assert stored.last is not None
    assert (stored.last.step, len(stored.last.tokens), len(stored.last.rows)) == (29, 32, 4)
    again = WorstOfRun.from_json(json.loads(json.dumps(stored.to_json())))
    assert (again.tokens, again.rows, again.last) == (stored.tokens, stored.rows, stored.last)
    assert len(table_rows(stored)) == 64


def test_nothing_invisible_is_left() -> None:
    """Spaces, line breaks, control characters and what has no width or turns text around are all shown."""
    assert visible(" a b  c ") == "␣a b␣␣c␣"
    assert visible("a\n\t\x1b\x7f") == "a↵⇥␛␡"
    assert visible("\u200b\u202e\xa0\u2028\u3164") == "⟨U+200B⟩⟨U+202E⟩⟨U+00A0⟩⟨U+2028⟩⟨U+3164⟩"
    assert visible("\u0301e") == "◌\u0301e"
    assert visible("漢字 é🚀") == "漢字 é🚀"


def hostile_run(folder: Path, **options: Any) -> None:
    """A run whose tokens are as bad as text can be."""
    with rs.Recorder(decode=lambda ids: HOSTILE * len(ids), output_dir=folder, **options) as recorder:
        for step in (1, 2):
            observe(recorder, [7, 8, 9], 1, size=float(step))
            recorder.flush(step=step)


def test_the_page_shows_hostile_tokens_as_text(tmp_path: Path) -> None:
    """The page has the run's worst tokens with id, place and numbers; nothing in their text is markup or unseen."""
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
    """A run without a tokenizer has its ids on page and terminal, and the page says how to have texts."""
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
    """A real W&B run and one that is synced later have the table in the summary, and no row of history for it."""
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
    """MLflow's own ``load_table`` reads the table, its page lists it, and a report from MLflow alone has the texts."""
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
        (run,) = client.search_runs([one.experiment_id for one in client.search_experiments()])
        table = client.load_table(run.info.experiment_id, "ratioscope/worst_tokens.json", [run.info.run_id])
        assert list(table.columns[: len(COLUMNS)]) == list(COLUMNS)
        assert (table["log_ratio"][0], table["token_id"][0]) == (-3.0, ids[1])
        assert "ratioscope/worst_tokens.json" in run.data.tags["mlflow.loggedArtifacts"]
        assert read(f"mlflow:{run.info.run_id}").worst.tokens == read(tmp_path / "run").worst.tokens
    finally:
        mlflow.set_tracking_uri(None)  # type: ignore[arg-type]


@pytest.mark.trackers
def test_tensorboard_shows_hostile_tokens_as_text(tmp_path: Path) -> None:
    """TensorBoard has a table of them, in which no character of a token is markup."""
    from tests.support.readback import read_tensorboard

    hostile_run(tmp_path, report_to="tensorboard")
    (events,) = {path.parent for path in tmp_path.rglob("events.out.tfevents*")}
    text = read_tensorboard(events).texts["ratioscope/worst_tokens/text_summary"]
    assert "<script" not in text
    assert all(line.count("|") == len(COLUMNS) + 1 for line in text.splitlines())
