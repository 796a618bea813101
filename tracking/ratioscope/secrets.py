"""Recognizes secrets: by the name they are stored under, and by their shape inside a text."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from itertools import pairwise
from typing import Any

from ratioscope.secret_formats import SHAPES
from ratioscope.text import plain

__all__ = ["REDACTED", "environment_secrets", "is_secret_name", "outgoing", "redact_text"]

REDACTED = "[redacted]"
"""Replaces a secret."""

MAX_TEXT = 8_192
"""Characters that are kept of one text."""

MIN_SECRET_LENGTH = 8
"""Characters an environment variable's secret must have to be searched for in other text."""

SLACK = 4_096
"""Characters read beyond the limit, so that a secret that the limit cuts in two is still recognized."""

_BREAKS = re.compile(r"\s*[\r\n\t\v\f\u2028\u2029]\s*")
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SECRET_WORDS = _words(
    "secret secrets password passwords passwd passphrase passcode pwd credential credentials creds cred "
    "otp totp mfa csrf xsrf mnemonic webhook webhooks dsn authz hmac cvv "
    "authorization apikey apikeys accesskey privatekey secretkey authtoken accesstoken hftoken hubtoken apitoken "
    "cookie cookies bearer jwt"
)
"""Words that make any name a secret's."""

_SECRET_ENDINGS = (
    *("password", "passwd", "apikey", "secretkey", "accesskey", "privatekey", "authtoken", "accesstoken"),
    *("dbpass", "dbpwd", "sshkey", "sessionid", "connectionstring", "connstr", "hftok", "webhookurl"),
)
"""Endings of words that make any name a secret's, as in ``dbpassword``."""

_SECRET_LAST_WORDS = frozenset({"auth", "pat", "signature", "sig", "pw", "pin", "pem", "cert", "sas", "verifier"})
"""Words that name a secret only when they end the name."""

_SECRET_ALONE = frozenset({"hf", "tok", "access", "refresh", "private", "sid"})
"""Words that name a secret only as a whole key; in a sentence (``access: denied``) they are plain words."""

_SECRET_PAIRS = frozenset(
    {("id", suffix) for suffix in ("rsa", "dsa", "ecdsa", "ed")}
    | {(before, "phrase") for before in ("seed", "recovery", "pass", "backup")}
    | {(before, word) for before in ("recovery", "backup", "verification", "otp") for word in ("code", "codes")}
    | {("connection", "string"), ("conn", "string"), ("conn", "str"), ("connection", "str"), ("session", "id")}
    | {
        ("account", "json"),
        ("account", "credentials"),
        ("pass", "word"),
        ("hf", "tok"),
        ("api", "tok"),
        ("auth", "tok"),
    }
)
"""Two words in a row that make any name a secret's."""

_OWNERS = _words(
    "api access auth private secret hf hub huggingface wandb openai anthropic github gh gitlab azure aws gcp google "
    "mlflow databricks comet neptune clearml swanlab trackio bearer refresh session service account client user "
    "admin bot id oauth deploy personal security signing encryption ssh master storage shared license subscription "
    "db kms webhook sentry slack discord telegram stripe twilio npm pypi docker"
)
"""Words before ``key``, ``keys``, ``token`` or ``pass`` that make it a secret."""

_TOKEN_OWNERS = frozenset({"api", "access", "auth", "secret", "hf", "hub", "bearer", "refresh", "oauth", "deploy"})
"""Words before ``tokens`` that make it a secret; far more often ``tokens`` is a count."""

_KEY_WORDS = frozenset({"key", "keys", "token", "tokens", "pass"})

_TEXT_TOKENS = _words(
    "pad eos bos unk sep cls mask image images video audio per stop start end begin eot eom special new next prev "
    "previous last first max min num think thinking tool call reasoning prompt completion sampled added extra fake "
    "boi eoi newline placeholder by any each every all one single text draft top prefix suffix middle word sub"
)
"""Words before ``token`` that make it a token of text."""

_AFTER_SECRET_TOKEN = frozenset({"value", "str", "string", "prod", "production", "dev", "test", "old", "new", "write"})
"""Words after ``token`` with which it is still a secret."""

_ABOUT_SECRET = frozenset({"path", "file", "dir", "env", "name", "type", "id", "ids", "expiry", "level", "url"})
"""Words after ``token`` or ``key`` with which the name describes the secret and does not hold it."""

_USER_INFO = re.compile(
    r"""([A-Za-z][A-Za-z0-9+.-]{0,30}://)
        (?:[^\s/?\#"'<>]{1,2048}@ | [^\s"'<>@/:]{0,256}:(?!\d{1,5}(?:[/?\#]))[^\s"'<>@]{1,2048}@)""",
    re.VERBOSE,
)
_SCHEMES = re.compile(
    r"\b(bearer|basic(?=\s+\S*(?-i:[0-9=A-Z])))(\s+)(?!\[redacted\])[A-Za-z0-9+/._~-]{8,}=*", re.IGNORECASE
)
_HEADERS = re.compile(
    r"""(\b(?:authorization|cookie)["']?\s{0,4}[:=]\s{0,4}["']?)(?!\[redacted\])[^"'\r\n]+""", re.IGNORECASE
)
_QUERY = re.compile(r"""([?&;\#])([\w.%-]{1,80})=([^&\s\#"'<>]+)""")
_ASSIGNED = re.compile(
    r"""(?<![\w.-])
        (?: -+(?P<flag>\w[\w.-]*)(?:\s{1,4}(?!-)|\s{0,4}[:=]\s{0,4}) | (?P<name>\w[\w.-]*)\\*["']?\s{0,4}[:=]\s{0,4} )
        (?= "(?P<double>(?:\\.|[^"\\])*) | '(?P<single>(?:\\.|[^'\\])*)
          | \\+["'](?P<escaped>(?:(?!\\+["']).)*) | (?P<bare>\[redacted\]|[^\s,;&"'})\]]+) )""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_NOT_SECRET = frozenset({"", "None", "none", "null", "True", "False", "true", "false", REDACTED})


def is_secret_name(name: Any, *, in_text: bool = False) -> bool:
    """Returns whether a setting of this name holds a secret.

    Words are compared whole, whatever joins them: ``hub_token``, ``x-api-key`` and ``wandbApiKey`` name secrets,
    ``max_tokens``, ``pad_token`` and ``tokenizer`` do not.

    Args:
        name: a key, a flag or a variable's name; a value that is no text is no secret's name.
        in_text: True for a word of a sentence, where a short key such as ``access`` is no name.
    """
    if not isinstance(name, str):
        return False
    words = [word.lower() for word in _WORD.findall(name[-512:])]
    if not words:
        return False
    if any(word in _SECRET_WORDS or word.endswith(_SECRET_ENDINGS) for word in words):
        return True
    if words[-1] in _SECRET_LAST_WORDS or words == ["pass"]:
        return True
    if not in_text and len(words) == 1 and words[0] in _SECRET_ALONE:
        return True
    if not _SECRET_PAIRS.isdisjoint(pairwise(words)):
        return True
    around = zip(["", *words], words, [*words[1:], ""], strict=False)
    return any(_is_secret_key(before, word, after) for before, word, after in around)


def _is_secret_key(before: str, word: str, after: str) -> bool:
    """Returns whether one word of a name is a secret key, token or pass, judged by its neighbours."""
    if word not in _KEY_WORDS or (after in _ABOUT_SECRET and (word, after) != ("key", "id")):
        return False
    if word == "tokens":
        return before in _TOKEN_OWNERS
    if word == "token":
        return before in _OWNERS or (before not in _TEXT_TOKENS and (not after or after in _AFTER_SECRET_TOKEN))
    return before in _OWNERS


def redact_text(text: str, known: re.Pattern[str] | None = None) -> str:
    """Replaces the secrets in a text and shortens it to ``MAX_TEXT`` characters and an ellipsis.

    Args:
        text: the text; characters that UTF-8 cannot hold are replaced by ``?``.
        known: a pattern of further secrets to remove.
    """
    clean = text[: MAX_TEXT + SLACK].encode("utf-8", "replace").decode("utf-8")
    if known is not None:
        clean = known.sub(REDACTED, clean)
    clean = SHAPES.sub(REDACTED, clean)
    clean = _USER_INFO.sub(rf"\1{REDACTED}@", clean)
    clean = _HEADERS.sub(rf"\1{REDACTED}", clean)
    clean = _SCHEMES.sub(rf"\1\2{REDACTED}", clean)
    clean = _without_assigned(_QUERY.sub(_clean_query, clean))
    if len(text) > MAX_TEXT + SLACK:
        clean = f"{clean[:-SLACK]}…"
    return clean if len(clean) <= MAX_TEXT + 1 else f"{clean[:MAX_TEXT]}…"


def _clean_query(match: re.Match[str]) -> str:
    mark, name, _ = match.groups()
    return f"{mark}{name}={REDACTED}" if name.lower() == "key" or is_secret_name(name) else match.group()


def _without_assigned(text: str) -> str:
    """Replaces values assigned to a secret's name: ``name=X``, ``"name": "X"``, ``--name X``.

    The pattern consumes the name only, so that a value which is itself a name, as in ``--note password: X``, is seen.
    """
    pieces: list[str] = []
    done = 0
    for match in _ASSIGNED.finditer(text):
        kind = next(kind for kind in ("double", "single", "escaped", "bare") if match[kind] is not None)
        start, end = match.span(kind)
        if (
            start >= done
            and is_secret_name(match["flag"] or match["name"], in_text=True)
            and match[kind] not in _NOT_SECRET
        ):
            pieces += [text[done:start], REDACTED]
            done = end
    return "".join([*pieces, text[done:]])


def environment_secrets() -> re.Pattern[str] | None:
    """Returns a pattern for the secrets that the environment holds, or None if it holds none."""
    named = {value for name, value in os.environ.items() if is_secret_name(name) and len(value) >= MIN_SECRET_LENGTH}
    secrets = {value for value in named if not os.path.exists(value)}  # PWD and SSL_CERT hold paths
    longest_first = sorted(secrets, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def outgoing(text: str) -> str:
    """Makes a text safe to leave the process: one line, without secrets and without control characters.

    Every log line, printed error, run name and log key passes here.

    Args:
        text: a text that may quote an exception, a path or a user's input.
    """
    return plain(_BREAKS.sub(" ", redact_text(text, known=environment_secrets())))


@lru_cache(maxsize=4096)
def outgoing_key(key: str) -> str:
    """Returns a log's key as it is stored and sent; unchanged but for secrets, NUL and halves of surrogate pairs."""
    return redact_text(key, known=environment_secrets()).replace("\0", "\N{REPLACEMENT CHARACTER}")
