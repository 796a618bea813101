"""Fake of vLLM's own ``LLM``, for versions of TRL that call it directly."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from tests.support.fake_engine import FakeEngine


class FakeLLM:
    """Returns the completions of :class:`FakeEngine` in the shape of ``vllm.LLM``; ``serve`` sets the policy."""

    def __init__(self, **_: Any) -> None:
        self.llm_engine = MagicMock()  # into which weights are loaded
        self._engine: Any = None
        self._tokenizer: Any = None

    def serve(self, trainer: Any) -> None:
        """Sets the trainer whose policy samples."""
        length = trainer.max_completion_length
        self._engine = FakeEngine(trainer.model, trainer.accelerator, max_completion_length=length)
        self._tokenizer = trainer.processing_class

    def reset_prefix_cache(self) -> None:
        """Does nothing: there is no cache."""

    def generate(self, prompts: list[str], **_: Any) -> list[SimpleNamespace]:
        """Generates one completion per prompt, in the shape of vLLM's ``RequestOutput``."""
        ids = [self._tokenizer(prompt)["input_ids"] for prompt in prompts]
        _, completions, logps, _ = self._engine.generate(ids)
        return [self._output(*parts) for parts in zip(ids, completions, logps, strict=True)]

    @staticmethod
    def _output(prompt: list[int], tokens: list[int], logps: list[list[float]]) -> SimpleNamespace:
        positions = [{token: SimpleNamespace(logprob=row[0])} for token, row in zip(tokens, logps, strict=True)]
        return SimpleNamespace(prompt_token_ids=prompt, outputs=[SimpleNamespace(token_ids=tokens, logprobs=positions)])
