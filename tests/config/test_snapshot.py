"""Run config: recorded settings, and no secret among them."""

from __future__ import annotations

import argparse
import enum
import json
import math
import subprocess
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ratioscope as rs
from ratioscope._version import DEFINITIONS_VERSION
from ratioscope.config.lookup import UNKNOWN, lookup
from ratioscope.config.redaction import redact
from ratioscope.config.snapshot import REDACTED, SCHEMA_VERSION, git_commit, snapshot, versions

PLANTED = "Zq7vXw2LmN4pRt8sKd1Y"

SECRET_NAMES = [
    "token",
    "hub_token",
    "HF_TOKEN",
    "hfToken",
    "push_to_hub_token",
    "use_auth_token",
    "accessToken",
    "api_tokens",
    "api_key",
    "apikey",
    "apiKey",
    "API-KEY",
    "x-api-key",
    "wandbApiKey",
    "WANDB_API_KEY",
    "openai_api_key_2",
    "aws_access_key_id",
    "aws_secret_access_key",
    "secret",
    "client.secret",
    "password",
    "DB_PASSWORD",
    "dbpassword",
    "passwd",
    "pwd",
    "credentials",
    "credential",
    "Authorization",
    "proxy-authorization",
    "access_key",
    "private_key",
    "ssh-private-key",
    "cookie",
    "Set-Cookie",
    "auth",
]
PLAIN_NAMES = [
    "max_tokens",
    "tokens",
    "num_tokens",
    "min_new_tokens",
    "pad_token",
    "pad_token_id",
    "eos_token",
    "bos_token",
    "token_level",
    "token_ids",
    "tokenizer",
    "tokenizer_name_or_path",
    "detokenize",
    "stop_token_ids",
    "tokens_per_second",
    "mean_per_token",
    "author",
    "key",
    "keys",
    "label_key",
    "monkey",
    "compass",
    "secretary",
    "passes",
    "bypass",
    "forward_pass",
    "hf_token_path",
    "",
]
SHAPED = [
    "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz12345678",
    "sk-" + "proj-Ab1Cd2Ef3Gh4Ij5Kl6Mn7Op8",
    "ghp_" + "Ab1Cd2Ef3Gh4Ij5Kl6Mn7Op8Qr9St0Uv1Wx2",
    "github_pat_" + "11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz",
    "AKIA" + "IOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0." + "dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7\nx0==\n-----END RSA PRIVATE KEY-----",
]


@dataclass
class Connection:
    """A dataclass with a secret in it."""

    host: str = "db"
    password: str = field(default=PLANTED, repr=False)


class Login(NamedTuple):
    """A named tuple with a secret in it."""

    user: str
    password: str


class Mode(enum.Enum):
    """An enum without text."""

    FAST = 1


class Kind(enum.StrEnum):
    """An enum of texts."""

    LORA = "LORA"


class Unreadable:
    """Object whose attributes and text all raise."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_secret_names_hide_their_values(name: str) -> None:
    """Any value under a secret's name is replaced, and the name stays."""
    assert redact({name: PLANTED}) == {name: REDACTED}
    assert redact({name: {"value": [PLANTED]}}) == {name: REDACTED}
    assert redact({name: 123456}) == {name: REDACTED}


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_plain_names_keep_their_values(name: str) -> None:
    """A value under a name that only resembles a secret's is kept."""
    assert redact({name: "</s>"}) == {name: "</s>"}
    assert redact({name: 512}) == {name: 512}


@pytest.mark.parametrize("value", [None, True, False, ""])
def test_unset_secrets_are_recorded(value: object) -> None:
    """None, a boolean or empty text under a secret's name is kept."""
    assert redact({"hub_token": value}) == {"hub_token": value}


@pytest.mark.parametrize("secret", SHAPED)
def test_secret_shapes_are_removed_from_text(secret: str) -> None:
    """A text with a secret's shape is replaced, alone and inside a longer text, under any name."""
    assert redact(secret) == REDACTED
    assert redact({"note": f"run with {secret}, then stop"}) == {"note": f"run with {REDACTED}, then stop"}


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("postgresql://me:pa55@host:5432/db", f"postgresql://{REDACTED}@host:5432/db"),
        ("see https://user:p@ss@host/x and go", f"see https://{REDACTED}@host/x and go"),
        ("postgres://me:pa/ss@host/db", f"postgres://{REDACTED}@host/db"),
        ("https://ghost@host/x", f"https://{REDACTED}@host/x"),
        ("https://h/x?a=1&api_key=abc&b=2", f"https://h/x?a=1&api_key={REDACTED}&b=2"),
        ("https://h/x?key=abc#top", f"https://h/x?key={REDACTED}#top"),
        ("https://h/x?sv=1&sig=a%2Fb", f"https://h/x?sv=1&sig={REDACTED}"),
        ("https://s3/x?X-Amz-Signature=abcd", f"https://s3/x?X-Amz-Signature={REDACTED}"),
        ("Bearer abcdefgh1234", f"Bearer {REDACTED}"),
        ("Authorization: Basic dXNlcjpwYXNz", f"Authorization: {REDACTED}"),
        ("curl -H 'Cookie: a=b; c=d' x", f"curl -H 'Cookie: {REDACTED}' x"),
        ('{"api_key": "abc", "top_p": 0.9}', f'{{"api_key": "{REDACTED}", "top_p": 0.9}}'),
        (r'{"a": "{\"api_key\": \"abc\"}"}', r'{"a": "{\"api_key\": \"[redacted]\"}"}'),
        ("train.py --hub-token abc --lr 1", f"train.py --hub-token {REDACTED} --lr 1"),
        ("HF_TOKEN=abc python x.py", f"HF_TOKEN={REDACTED} python x.py"),
        ("--note password: abc", f"--note password: {REDACTED}"),
    ],
)
def test_secrets_inside_text_are_removed(text: str, clean: str) -> None:
    """A secret inside a URL, a header, JSON text or a command line is removed and the rest is kept."""
    assert redact(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "http://localhost:8000/v1",
        "http://localhost:8000/v1?user=a@b",
        "https://huggingface.co/Qwen/Qwen2-0.5B-Instruct",
        "Qwen/Qwen2-0.5B-Instruct@main",
        "hf_transfer",
        "task-2024-01-12-experiment-7",
        "max_tokens=512 --eos-token </s> pad_token: <pad>",
        "The bearer of bad news",
        "0123456789abcdef0123456789abcdef01234567",
        "https://h/x?page=2&max_tokens=7",
    ],
)
def test_ordinary_text_is_kept(text: str) -> None:
    """A text without a secret is returned unchanged."""
    assert redact(text) == text


def test_secrets_after_their_name_are_removed() -> None:
    """A value that follows its secret name in a pair, a command line or a name-and-value entry is replaced."""
    assert redact([("api_key", "abc"), ("top_p", 0.9)]) == [["api_key", REDACTED], ["top_p", 0.9]]
    assert redact(["x.py", "--hub-token", "abc", "--lr", "1"]) == ["x.py", "--hub-token", REDACTED, "--lr", "1"]
    assert redact({"name": "HF_TOKEN", "value": "abc"}) == {"name": "HF_TOKEN", "value": REDACTED}


def test_structures_become_json() -> None:
    """Dataclasses, namespaces, named tuples, sets and tuples are copied as plain dicts and lists."""
    assert redact(Connection()) == {"host": "db", "password": REDACTED}
    assert redact(types.SimpleNamespace(a=1, token=PLANTED)) == {"a": 1, "token": REDACTED}
    assert redact(argparse.Namespace(a=1, token=PLANTED)) == {"a": 1, "token": REDACTED}
    assert redact(Login("me", PLANTED)) == {"user": "me", "password": REDACTED}
    assert redact({"s": {3, 1, 2}, "t": (1, (2,))}) == {"s": [1, 2, 3], "t": [1, [2]]}
    assert redact({1: "a", "1": "b", None: "c"}) == {"1": "a", "1#2": "b", "None": "c"}


def test_scalars_become_json() -> None:
    """Dtypes, enums, paths, array scalars and non-finite floats become plain values."""
    assert redact([torch.bfloat16, np.dtype("float32")]) == ["torch.bfloat16", "float32"]
    assert redact([Mode.FAST, Kind.LORA, PurePosixPath("/a/b")]) == ["Mode.FAST", "LORA", "/a/b"]
    assert redact([np.float64(0.5), np.int64(3), np.bool_(True), np.float32("nan")]) == [0.5, 3, True, "nan"]
    assert redact([math.nan, math.inf, -math.inf]) == ["nan", "inf", "-inf"]
    assert redact([torch.Size([2, 3]), 2**70, b"abc"]) == [[2, 3], "<integer of 71 bits>", "<3 bytes>"]
    assert redact("\ud800") == "?"


def test_objects_are_named_only() -> None:
    """An opaque object is replaced by its type's name, and a function by its own name."""
    assert redact([object(), torch.ones(2), redact, Mode]) == ["<object>", "<Tensor>", "redact", "Mode"]
    assert redact({"a": Unreadable(), "b": 1}) == {"a": "<Unreadable>", "b": 1}


def test_cycles_end() -> None:
    """A structure that holds itself is cut where it repeats, and a shared structure is copied twice."""
    ring: dict[str, Any] = {"a": 1}
    ring["self"] = ring
    shared = [1]
    assert redact(ring) == {"a": 1, "self": "[cycle]"}
    assert redact([shared, shared]) == [[1], [1]]


@pytest.mark.timeout(20)
def test_huge_structures_are_cut() -> None:
    """Deep, wide and long inputs are cut to a bounded size."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    row = list(range(10_000))
    wide = {f"n{number}": row for number in range(10_000)}
    texts = ["a" * 10_000 + str(number) for number in range(1_000)]
    for value in (
        deep,
        wide,
        texts,
        "a" * 10_000_000,
        "://" * 3_000,
        "eyJ" * 4_000,
        "a-_." * 3_000,
        '\\"' * 6_000,
        10**5000,
    ):
        assert len(json.dumps(redact(value))) < 2_000_000


def test_a_secret_across_the_cut_is_removed() -> None:
    """A secret at the position where a long text is cut leaves no part behind."""
    for before in range(8_150, 8_200):
        assert "hf_" not in redact(f"{'x ' * (before // 2)}hf_{PLANTED}{' y' * 10_000}")


def test_secrets_of_the_environment_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that an environment variable holds under a secret's name is removed everywhere."""
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567")
    assert redact({"note": "x0123456789abcdef0123456789abcdef01234567x"}) == {"note": f"x{REDACTED}x"}


def test_redacting_leaves_the_input_alone() -> None:
    """The input is neither changed nor shared with the copy."""
    value = {"a": [1, {"hub_token": PLANTED}]}
    copy = redact(value)
    copy["a"].append(2)
    assert value == {"a": [1, {"hub_token": PLANTED}]}


def nested(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Generates structures of every kind around a leaf."""
    noise = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    return st.recursive(
        leaf,
        lambda inner: (
            st.tuples(noise, inner)
            | st.lists(noise, max_size=3).flatmap(lambda items: inner.map(lambda value: [*items, value]))
            | st.tuples(st.text(max_size=8), inner).map(lambda pair: {pair[0]: pair[1], "other": 1})
            | inner.map(lambda value: types.SimpleNamespace(inner=value))
        ),
        max_leaves=4,
    )


SURROUNDING = st.text(max_size=20)
SEPARATOR = st.sampled_from([" ", "\n", ", ", "; ", "(", "'", '"'])
PLANTED_IN_TEXT = st.builds(
    lambda before, separator, form, after: f"{before}{separator}{form}{separator}{after}",
    SURROUNDING,
    SEPARATOR,
    st.sampled_from(
        [
            f"hf_{PLANTED}",
            f"sk-{PLANTED}",
            f"ghp_{PLANTED}",
            f"Bearer {PLANTED}",
            f"https://user:{PLANTED}@host/x",
            f"https://host/x?api_key={PLANTED}",
            f"password={PLANTED}",
            f'"api_key": "{PLANTED}"',
            f"--hub-token {PLANTED}",
        ]
    ),
    SURROUNDING,
)
PLANTED_BY_NAME = st.sampled_from(SECRET_NAMES).map(lambda name: {name: PLANTED})


@settings(max_examples=300, deadline=None)
@given(nested(PLANTED_IN_TEXT | PLANTED_BY_NAME))
@example({"generation_kwargs": {"extra": [{"api_key": PLANTED}]}})
def test_a_planted_secret_never_survives(value: Any) -> None:
    """The JSON of the copy never holds a planted secret, and redacting again changes nothing."""
    copy = redact(value)
    assert PLANTED not in json.dumps(copy)
    assert redact(copy) == copy


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_redacted_once(text: str) -> None:
    """Redacting any text a second time changes nothing."""
    once = redact(text)
    assert redact(once) == once


def test_lookup_reads_attributes_and_mappings() -> None:
    """A path is read through objects and mappings; None is known, and a missing or raising step is unknown."""
    root = types.SimpleNamespace(a={"b": types.SimpleNamespace(c=None)}, bad=Unreadable())
    assert lookup(root, "a.b.c") is None
    assert lookup(root, "a.x.c") == UNKNOWN
    assert lookup(root, "bad.c") == UNKNOWN


def test_versions_are_read_without_importing() -> None:
    """Versions are read for installed packages without importing them; absent packages are left out."""
    code = (
        "import sys; from ratioscope.config.snapshot import versions; installed = versions(); "
        "assert not {'torch', 'numpy', 'transformers', 'wandb', 'mlflow'} & set(sys.modules); print(*installed)"
    )
    paths = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=paths)
    assert {"python", "ratioscope", "torch", "numpy"} <= set(done.stdout.split())
    assert versions()["torch"] == torch.__version__
    assert "None" not in versions().values()


def test_git_commit_is_read_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is found from a folder inside a checkout; elsewhere, and without git, it is None."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert git_commit(tmp_path) is None
    assert git_commit(tmp_path / "missing") is None
    repository = tmp_path / "repo"
    inner = repository / "inner"
    inner.mkdir(parents=True)
    git = ["git", "-C", str(repository), "-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    assert git_commit(repository) is None
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--no-verify", "-m", "x"], check=True)
    commit = git_commit(inner)
    assert commit is not None
    assert len(commit) == 40
    monkeypatch.setenv("PATH", "")
    assert git_commit(inner) is None


def test_snapshot_holds_the_rule_and_its_sources() -> None:
    """The snapshot has the rule, the source of each bound, and the user's config."""
    sources = types.MappingProxyType({"upper": "vllm_importance_sampling_cap"})
    rule = rs.Correction("token", "truncate", upper=2.0, sources=sources)
    taken = snapshot(rule, {"seed": 1, "hub_token": PLANTED}, loss={"loss_type": "dapo"}, engine={"dtype": UNKNOWN})
    assert taken["schema_version"] == SCHEMA_VERSION
    assert taken["definitions_version"] == DEFINITIONS_VERSION
    assert taken["correction"] == {
        "enabled": True,
        "mode": "token_truncate",
        "level": "token",
        "action": "truncate",
        "lower": None,
        "upper": 2.0,
        "sources": {"upper": "vllm_importance_sampling_cap"},
    }
    assert taken["loss"] == {"loss_type": "dapo"}
    assert taken["engine"] == {"dtype": UNKNOWN}
    assert taken["user"] == {"seed": 1, "hub_token": REDACTED}
    assert taken["versions"]["python"]
    assert "git_commit" in taken
    assert PLANTED not in json.dumps(taken)


def test_snapshot_without_a_rule_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a rule the correction is off, and outside a repository the commit is unknown."""
    monkeypatch.chdir(tmp_path)
    taken = snapshot(None, None)
    assert taken["correction"] == {"enabled": False}
    assert taken["git_commit"] == UNKNOWN
    assert taken["user"] == {}


def test_snapshot_refuses_a_section_with_a_taken_name() -> None:
    """A section cannot replace an entry of the snapshot itself."""
    with pytest.raises(ValueError, match="versions"):
        snapshot(None, None, versions={})
