"""TokenTexts: the text of worst tokens, decoded on rank 0 in the flush.

A tokenizer written in Rust takes microseconds. One written in Python may be slow, so its tokens have ids only. Its
``decode`` can be passed as a function instead, which is called however long it takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from ratioscope.state.worst import TokenText, contexts_of

if TYPE_CHECKING:
    from ratioscope.incidents import Incidents
    from ratioscope.record import Record
    from ratioscope.state.worst import Context

MAX_TOKEN, MAX_CONTEXT = 64, 96
"""Characters that are kept of a token, and of its neighbours on either side."""

_IN_RUST = {"tokenizers", "tiktoken"}
"""Packages whose tokenizers are written in Rust."""
_MAX_DECODED = 4096
_CACHED = 8192
_SURROGATES = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Tokenizer(Protocol):
    """Tokenizer of ``transformers``, ``tokenizers``, ``tiktoken`` and others."""

    @property
    def decode(self) -> Callable[..., str]:
        """From ids to text."""
        ...


Decode = Callable[[Sequence[int]], str] | Tokenizer
"""A function from ids to text, or a tokenizer."""


def token_texts(decode: Decode | None, incidents: Incidents) -> TokenTexts | None:
    """Makes the texts' source; None where only ids are kept: without a tokenizer, or for one in Python.

    Args:
        decode: a tokenizer, whose special tokens appear in the texts, or a function from ids to text.
        incidents: where failures are reported.

    Raises:
        TypeError: if ``decode`` cannot decode.
    """
    if decode is None:
        return None
    method: Any = getattr(decode, "decode", None)
    if method is None:
        if callable(decode):
            return TokenTexts(decode, incidents)
        msg = f"got decode={decode!r}; expected a tokenizer, or a function from a list of ids to text"
        raise TypeError(msg)
    # The Rust part of a fast tokenizer of transformers: several times as fast, and it keeps spaces as they are.
    tokenizer: Any = getattr(decode, "backend_tokenizer", decode)
    is_in_rust = type(tokenizer).__module__.partition(".")[0] in _IN_RUST
    return TokenTexts(_Decoder(tokenizer.decode), incidents) if is_in_rust else None


class TokenTexts:
    """Adds the texts of worst tokens to records. No method raises.

    Args:
        decode: a function from ids to text.
        incidents: where failures are reported.
    """

    def __init__(self, decode: Callable[[list[int]], str], incidents: Incidents) -> None:
        self._decode = decode
        self._incidents = incidents
        self._cache: dict[tuple[int, ...], str] = {}

    def add(self, record: Record) -> Record:
        """Returns the record with the texts of its worst tokens; None for those that cannot be decoded."""
        with self._incidents.guard("decoding tokens"):
            contexts = contexts_of(record.summary.top.tokens)
            if any(contexts):
                return replace(record, texts=tuple(map(self._text_or_none, contexts)))
        return record

    def _text_or_none(self, context: Context | None) -> TokenText | None:
        if context is None:
            return None
        try:
            return self._text(*context)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in Rust is no Exception
            name = type(error).__name__
            message = f"decoding tokens failed: {name}: {error}; worst tokens have their ids only"
            self._incidents.report(f"decoding tokens: {name}", message)
            return None

    def _text(self, before: tuple[int, ...], token: int, after: tuple[int, ...]) -> TokenText:
        """Returns a token's part of the text around it.

        The text of a token depends on its neighbours: a leading space is lost at the start of a text, and a character
        may be spread over several tokens. So the texts with and without the token are compared. A part is decoded
        alone only where the longer text does not begin with the shorter one.
        """
        head, middle = self._cached(before), self._cached((*before, token))
        whole = self._cached((*before, token, *after))
        text = middle[len(head) :] if middle.startswith(head) else ""
        rest = whole[len(middle) :] if whole.startswith(middle) else self._cached(after)
        return TokenText(
            f"…{head[-MAX_CONTEXT:]}" if len(head) > MAX_CONTEXT else head,
            _cut(text or self._cached((token,)), MAX_TOKEN),
            _cut(rest, MAX_CONTEXT),
        )

    def _cached(self, ids: tuple[int, ...]) -> str:
        if not ids:
            return ""
        text = self._cache.get(ids)
        if text is None:
            if len(self._cache) >= _CACHED:
                self._cache.clear()
            text = self._cache[ids] = _clean(self._decode(list(ids)))
        return text


class _Decoder:
    """Decodes with special tokens in the text, also where the tokenizer has no such option."""

    def __init__(self, decode: Callable[..., str]) -> None:
        self._decode = decode
        self._options: dict[str, bool] = {"skip_special_tokens": False}

    def __call__(self, ids: list[int]) -> str:
        if not self._options:
            return self._decode(ids)
        try:
            return self._decode(ids, **self._options)
        except TypeError:
            text = self._decode(ids)
            self._options = {}
            return text


def _clean(text: object) -> str:
    if not isinstance(text, str):
        msg = f"got {type(text).__name__} from the tokenizer; expected str"
        raise TypeError(msg)
    return _SURROGATES.sub(_REPLACEMENT, text[:_MAX_DECODED])


def _cut(text: str, limit: int) -> str:
    return f"{text[:limit]}…" if len(text) > limit else text
