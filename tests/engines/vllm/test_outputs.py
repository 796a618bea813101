"""vLLM's outputs as tensors: log-probabilities of sampled tokens, and tokens without one."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import ratioscope as rs
from ratioscope_integrations.engines.vllm import KINDS, from_outputs, outputs

PAD = 0
OWN = "ratioscope/"


def entry(value: float | None) -> SimpleNamespace:
    """Makes an entry of a position, as vLLM does."""
    return SimpleNamespace(logprob=value, rank=1, decoded_token="x")


def completion(tokens: list[int], logprobs: Any) -> SimpleNamespace:
    """Makes a completion."""
    return SimpleNamespace(token_ids=tokens, logprobs=logprobs)


def request(*completions: SimpleNamespace) -> SimpleNamespace:
    """Makes the ``RequestOutput`` of one prompt."""
    return SimpleNamespace(outputs=list(completions))


def sampled(tokens: list[int], logps: list[float | None]) -> SimpleNamespace:
    """Makes a request with only the sampled token's log-probability, as ``logprobs=0`` gives it."""
    return request(completion(tokens, [{t: entry(value)} for t, value in zip(tokens, logps, strict=False)]))


def counts(rollout: outputs.Rollout) -> dict[str, int]:
    """Returns the counts that are not zero."""
    return {kind: number for kind, number in rollout.counts.items() if number}


def metrics(train: list[list[float]], rollout: outputs.Rollout) -> dict[str, float]:
    """Computes the metrics of the batch against a trainer's log-probabilities."""
    return rs.summarize(torch.tensor(train), rollout.rollout_logps, rollout.mask).metrics()


@pytest.mark.parametrize("top_first", [True, False])
def test_sampled_token_is_looked_up_by_its_id(top_first: bool) -> None:
    """The sampled token's own log-probability is used, at any place in its position's dict (C28)."""
    entries = {7: entry(-0.10), 5: entry(-2.30)}
    ordered = entries if top_first else dict(reversed(entries.items()))
    rollout = from_outputs([request(completion([5], [ordered]))], pad_id=PAD)
    assert rollout.rollout_logps.tolist() == [[pytest.approx(-2.30)]]
    mean = metrics([[-2.25]], rollout)["sampling/raw_importance_sampling_ratio/mean"]
    assert mean == pytest.approx(1.051271, abs=1e-6)
    assert counts(rollout) == {}


@pytest.mark.parametrize("rows", [[[-2.3, -0.1]], torch.tensor([[-2.3, -0.1]]), np.array([[-2.3, -0.1]])])
def test_columns_of_top_log_probabilities_are_refused(rows: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Log-probabilities of shape (T, N+1) give no number, and are counted and reported (C28)."""
    with caplog.at_level(logging.WARNING, "ratioscope"):
        rollout = from_outputs([request(completion([5], rows))], pad_id=PAD)
    assert counts(rollout) == {"refused": 1}
    assert rollout.rollout_logps.isnan().all()
    assert "the sampled token's entry cannot be identified" in caplog.text


def test_an_array_is_refused() -> None:
    """A 3-D tensor raises an error as outputs and as log-probabilities (C28)."""
    logps = -torch.rand(2, 5, 3)
    with pytest.raises(TypeError, match=r"shape \(2, 5, 3\).*does not say which one is the sampled token's"):
        from_outputs(logps, pad_id=PAD)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"shape \(2, 5, 3\)"):
        rs.summarize(logps[..., 0], logps, torch.ones(2, 5))
    with pytest.raises(TypeError, match="got an output of type list; expected a RequestOutput"):
        from_outputs([[-0.1]], pad_id=PAD)


def test_unscored_tokens_enter_no_statistic() -> None:
    """A token whose log-probability is None or NaN is masked in and counted, and enters no statistic (C01, C02)."""
    for bad, kind in ((None, "none"), (math.nan, "nan")):
        rollout = from_outputs([sampled([5, 6, 7], [bad, -1.2, -2.0])], pad_id=PAD)
        assert counts(rollout) == {kind: 1}
        assert rollout.mask.tolist() == [[True, True, True]]
        result = metrics([[-0.5, -1.0, -2.0]], rollout)
        assert result["sampling/raw_importance_sampling_ratio/mean"] == pytest.approx(1.110701, abs=1e-6)
        assert result[f"{OWN}kl/k1"] == pytest.approx(-0.1, abs=1e-6)
        assert result[f"{OWN}tokens/invalid"] == pytest.approx(1 / 3)


def test_a_position_without_entries_is_counted() -> None:
    """A position whose dict is None counts as a token without a log-probability."""
    rollout = from_outputs([request(completion([5, 6], [None, {6: entry(-1.0)}]))], pad_id=PAD)
    assert counts(rollout) == {"none": 1}
    assert rollout.rollout_logps[0, 1] == -1.0


def test_appended_tokens_shift_no_other() -> None:
    """An EOS that the trainer appends has no log-probability, and the other tokens keep theirs (C30)."""
    logps: list[float | None] = [-0.1, -0.2, -0.3]
    rollout = from_outputs([sampled([5, 6, 7], logps)], pad_id=PAD, token_ids=[[5, 6, 7, 2]])
    assert rollout.token_ids.tolist() == [[5, 6, 7, 2]]
    assert rollout.rollout_logps[0, :3].tolist() == pytest.approx(logps)
    assert counts(rollout) == {"appended": 1}
    result = metrics([[-0.1, -0.2, -0.3, -9.0]], rollout)
    assert (result[f"{OWN}counts/tokens"], result[f"{OWN}tokens/invalid"]) == (3, 0.25)
    assert result[f"{OWN}log_ratio/abs_mean"] == pytest.approx(0.0, abs=1e-7)


def test_log_probabilities_may_be_fewer_or_more_than_tokens() -> None:
    """A missing tail is counted as missing; entries beyond the last token are counted and ignored (C30)."""
    short = sampled([5, 6, 7, 2], [-0.1, -0.2, -0.3])
    rollout = from_outputs([short], pad_id=PAD)
    assert counts(rollout) == {"missing": 1}
    assert rollout.rollout_logps.isnan().tolist() == [[False, False, False, True]]
    long = request(completion([5], [{5: entry(-0.1)}, {6: entry(-0.2)}]))
    rollout = from_outputs([long], pad_id=PAD)
    assert counts(rollout) == {"surplus": 1}
    assert rollout.rollout_logps.tolist() == [[pytest.approx(-0.1)]]


def test_trainers_rows_must_begin_like_the_engines() -> None:
    """Rows cut at the end are accepted; other tokens or another number of rows raise an error."""
    outputs = [sampled([5, 6, 7], [-0.1, -0.2, -0.3])]
    rollout = from_outputs(outputs, pad_id=PAD, token_ids=[[5, 6]])
    assert rollout.rollout_logps.tolist() == [pytest.approx([-0.1, -0.2])]
    assert counts(rollout) == {}
    with pytest.raises(ValueError, match="got token 7 at position 1 of row 0 in token_ids, where the engine sampled 6"):
        from_outputs(outputs, pad_id=PAD, token_ids=[[5, 7, 7]])
    with pytest.raises(ValueError, match="got token_ids of 2 rows; expected 1"):
        from_outputs(outputs, pad_id=PAD, token_ids=[[5], [5]])


def test_shifted_entries_are_visible() -> None:
    """Entries shifted by one do not match the sampled tokens, or give the shifted numbers (C29)."""
    tokens = [5, 6, 7, 8]
    shifted = [{t: entry(-1.0)} for t in [6, 7, 8, 9]]
    assert counts(from_outputs([request(completion(tokens, shifted))], pad_id=PAD)) == {"unmatched": 4}

    rollout = from_outputs([sampled(tokens, [-0.1, -3.0, -0.2, -2.0])], pad_id=PAD)
    result = metrics([[-3.0, -0.2, -2.0, -0.05]], rollout)
    assert result[f"{OWN}log_ratio/abs_mean"] == pytest.approx(2.3625, rel=1e-5)


def test_absurd_log_probabilities_pass_through() -> None:
    """A positive value counts as positive, a hugely negative one as overflow, and neither is averaged (C34)."""
    rollout = from_outputs([sampled([5, 6, 7, 8], [-0.3, 1.2e30, -7.7e8, -0.2])], pad_id=PAD)
    assert counts(rollout) == {}
    result = metrics([[-0.3, -0.3, -0.3, -0.3]], rollout)
    assert (result[f"{OWN}counts/positive_logp"], result[f"{OWN}counts/overflow"]) == (1, 1)


def test_missing_log_probabilities_are_reported_once_per_run(caplog: pytest.LogCaptureFixture) -> None:
    """Completions without log-probabilities are counted, and each run logs the remedy once."""
    remedy = "set SamplingParams(logprobs=0)"
    for run in (1, 2):
        recorder = rs.Recorder()
        with caplog.at_level(logging.WARNING, "ratioscope"):
            for _ in range(2):
                outputs = [request(completion([5, 6], None))]
                rollout = from_outputs(outputs, pad_id=PAD, incidents=recorder.incidents)
        assert counts(rollout) == {"unrequested": 2}
        assert recorder.incidents.counts == {"unrequested": 2}
        assert caplog.text.count(remedy) == run


def test_a_call_without_incidents_reports_each_kind_once(caplog: pytest.LogCaptureFixture) -> None:
    """Without a run's incidents every call logs a problem once, however many completions have it."""
    with caplog.at_level(logging.WARNING, "ratioscope"):
        from_outputs([request(completion([5, 6], None), completion([5], None))], pad_id=PAD)
        from_outputs([request(completion([5], None))], pad_id=PAD)
    assert caplog.text.count("set SamplingParams(logprobs=0)") == 2


def test_rows_are_completions_in_order() -> None:
    """Completions of one prompt are neighbouring rows; a prompt without any, or None, is an empty row."""
    first, second, third = ([{t: entry(-float(t))} for t in tokens] for tokens in ([3], [4, 5, 6], [7, 8]))
    outputs = [
        request(completion([3], first), completion([4, 5, 6], second)),
        request(),
        None,
        request(completion([], []), completion([7, 8], third)),
    ]
    rollout = from_outputs(outputs, pad_id=99)
    assert rollout.requests == (0, 0, 1, 2, 3, 3)
    assert rollout.token_ids.tolist() == [[3, 99, 99], [4, 5, 6], [99] * 3, [99] * 3, [99] * 3, [7, 8, 99]]
    assert rollout.mask.sum(dim=1).tolist() == [1, 3, 0, 0, 0, 2]
    assert torch.equal(rollout.rollout_logps.nan_to_num(0.0), -rollout.token_ids * rollout.mask.float())
    assert (rollout.token_ids.dtype, rollout.rollout_logps.dtype, rollout.mask.dtype) == (
        torch.int64,
        torch.float32,
        torch.bool,
    )
    assert rollout.counts.keys() == KINDS.keys()
    result = rs.summarize(rollout.rollout_logps - 0.1, rollout.rollout_logps, rollout.mask).metrics()
    assert (result[f"{OWN}counts/rows"], result[f"{OWN}counts/rows_empty"]) == (3, 3)


@pytest.mark.parametrize("outputs", [[], [request()]])
def test_empty_outputs_are_a_batch(outputs: list[Any]) -> None:
    """Outputs without a token give a batch of width 0 that a recorder accepts."""
    rollout = from_outputs(outputs, pad_id=PAD)
    assert rollout.mask.shape == (len(outputs), 0)
    recorder = rs.Recorder()
    recorder.observe(rollout.rollout_logps, rollout.rollout_logps, rollout.mask, token_ids=rollout.token_ids)


def test_flat_containers_give_the_same_result() -> None:
    """A container with all positions in one list is read by its fields, without a dict for each position."""
    flat = SimpleNamespace(
        start_indices=[0, 2, 4, 4],
        end_indices=[2, 4, 4, 6],
        token_ids=[7, 5, 6, 7, 5, 9],
        logprobs=[-0.10, -2.30, -0.4, -0.5, -0.6, math.nan],
    )
    container = type("Flat", (), {**vars(flat), "__len__": lambda self: 4})()
    rollout = from_outputs([request(completion([5, 7, 7, 9], container))], pad_id=PAD)
    assert rollout.rollout_logps[0, :2].tolist() == pytest.approx([-2.30, -0.5])
    assert counts(rollout) == {"none": 1, "nan": 1}
    rollout = from_outputs([request(completion([5, 5], container))], pad_id=PAD)
    assert counts(rollout) == {"unmatched": 1, "surplus": 2}
