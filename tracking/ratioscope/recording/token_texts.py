"""The text of worst tokens, for people: decoded on rank 0, whatever the tokenizer does, in a bounded time.

A tokenizer written in Rust takes microseconds and never waits for anything, so a flush calls it itself. Any other
function may be slow or hang: it is called on a thread of ours, for which a flush waits only so long.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from ratioscope.state.worst import TokenText, contexts_of

if TYPE_CHECKING:
    from ratioscope.incidents import Incidents
    from ratioscope.record import Record
    from ratioscope.state.worst import Context

WAIT_S = 0.05
"""How long a flush waits for the tokenizer."""
MAX_OVERRUNS = 3
"""Flushes in a row that waited in vain, after which the tokenizer is left alone."""
MAX_TOKEN, MAX_CONTEXT = 64, 96
"""Characters that are kept of a token, and of what stands on either side of it."""

_MAX_DECODED = 4096
_CACHED = 8192
_SURROGATES = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Tokenizer(Protocol):
    """What can decode: a tokenizer of ``transformers``, ``tokenizers``, ``tiktoken`` and others."""

    @property
    def decode(self) -> Callable[..., str]:
        """From ids to text."""
        ...


Decode = Callable[[Sequence[int]], str] | Tokenizer
"""A function from ids to text, or a tokenizer."""


class TokenTexts:
    """Adds texts to records. Nothing of it raises, and no record waits long for it.

    Args:
        decode: a tokenizer, whose special tokens are shown, or a function from ids to text.
        incidents: where failures are reported.

    Raises:
        TypeError: if ``decode`` is neither.
    """

    def __init__(self, decode: Decode, incidents: Incidents) -> None:
        self._decode = _function(decode)
        self._quick = _in_rust(decode)
        self._incidents = incidents
        self._cache: dict[tuple[int, ...], str] = {}
        self._thread: threading.Thread | None = None
        self._overruns = 0

    def add(self, record: Record) -> Record:
        """The record with the texts of its worst tokens, as far as they are known in time."""
        if self._overruns == MAX_OVERRUNS or (self._thread is not None and self._thread.is_alive()):
            return record
        with self._incidents.guard("decoding tokens"):
            contexts = contexts_of(record.summary.top.tokens)
            if not any(contexts):
                return record
            found: list[TokenText | None] = [None] * len(contexts)
            late = threading.Event()
            if self._quick:
                self._fill(contexts, found, late)
            else:
                self._fill_in_time(contexts, found, late)
            return replace(record, texts=tuple(found))
        return record

    def _fill_in_time(
        self, contexts: Sequence[Context | None], found: list[TokenText | None], late: threading.Event
    ) -> None:
        fill = threading.Thread(target=self._fill, args=(contexts, found, late), name="ratioscope-decode", daemon=True)
        self._thread = fill
        fill.start()
        fill.join(WAIT_S)
        if not fill.is_alive():
            self._overruns = 0
            return
        late.set()
        self._overruns += 1
        self._incidents.report(
            "slow tokenizer", f"the tokenizer was not ready after {WAIT_S:g} s; worst tokens have their ids only"
        )

    def _fill(self, contexts: Sequence[Context | None], found: list[TokenText | None], late: threading.Event) -> None:
        for slot, context in enumerate(contexts):
            if late.is_set():
                return
            if context is not None:
                try:
                    found[slot] = self._text(*context)
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException as error:  # a panic in Rust is no Exception
                    kind = f"decoding tokens: {type(error).__name__}"
                    self._incidents.report(
                        kind,
                        f"decoding tokens failed: {type(error).__name__}: {error}; worst tokens have their ids only",
                    )

    def _text(self, before: tuple[int, ...], token: int, after: tuple[int, ...]) -> TokenText:
        """A token's part of the text that it stands in.

        What a token decodes to depends on its neighbours: a leading space is lost at the start of a text, and a
        character may be spread over tokens. So texts are compared with and without it, and a part is decoded by itself
        only where the shorter text is no beginning of the longer one.
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


def _function(decode: Decode) -> Callable[[list[int]], str]:
    of_tokenizer: Any = getattr(decode, "decode", None)
    if of_tokenizer is None:
        if callable(decode):
            return decode
        msg = f"got decode={decode!r}; expected a tokenizer, or a function from a list of ids to text"
        raise TypeError(msg)
    # Of a fast tokenizer of transformers the part in Rust: several times as fast, and it leaves spaces as they are.
    of_backend: Any = getattr(getattr(decode, "backend_tokenizer", None), "decode", None)
    return _Decoder(of_tokenizer if of_backend is None else of_backend)


def _in_rust(decode: Decode) -> bool:
    return type(getattr(decode, "backend_tokenizer", decode)).__module__.partition(".")[0] == "tokenizers"


class _Decoder:
    """A tokenizer's ``decode`` with special tokens shown, whether or not it can be told to."""

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
