"""Text that leaves the process: vendors' formats, names of secrets, log lines and printed errors."""

from __future__ import annotations

import logging

import pytest

from ratioscope.cli.main import main
from ratioscope.incidents import Incidents, log
from ratioscope.secrets import REDACTED, is_secret_name, outgoing

A32, H32 = "aB3dE6gH9jK2mN5pQ8sT1vW4xY7zA0cD", "0123456789abcdef0123456789abcdef"

FORMATS = {
    "gitlab-pat": "glpat-" + A32[:20],
    "gitlab-runner": "glrt-" + A32[:20],
    "gitlab-deploy": "gldt-" + A32[:20],
    "gitlab-runner-old": "GR1348941" + A32[:20],
    "github": "ghp_" + A32,
    "github-fine": "github_pat_" + A32,
    "github-app": "ghs_" + A32,
    "aws-id": "AKIA" + "IOSFODNN7EXAMPLE",
    "aws-secret": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "google-api": "AIza" + A32 + "abc",
    "google-oauth": "ya29." + A32,
    "google-client": "GOCSPX-" + A32[:28],
    "slack-bot": "xoxb-123456789012-" + A32[:24],
    "slack-app": "xapp-1-A0123-1234567890123-" + H32,
    "slack-hook": "hooks.slack.com/services/T00000000/B00000000/" + A32[:24],
    "discord-hook": "discord.com/api/webhooks/123456789012345678/" + A32,
    "discord-bot": "MTIzNDU2Nzg5MDEyMzQ1Njc4.Gabcde." + A32,
    "teams-hook": "corp.webhook.office.com/webhookb2/" + H32,
    "telegram": "123456789:AAH" + A32,
    "stripe-live": "sk_live_" + A32,
    "stripe-restricted": "rk_live_" + A32,
    "stripe-hook": "whsec_" + A32,
    "twilio": "SK" + H32,
    "sendgrid": "SG." + A32[:22] + "." + A32,
    "mailgun": "key-" + H32,
    "mailchimp": H32 + "-us12",
    "npm": "npm_" + A32,
    "pypi": "pypi-AgEIcHlwaS5vcmc" + A32,
    "docker": "dckr_pat_" + A32,
    "digitalocean": "dop_v1_" + H32,
    "shopify": "shpat_" + H32,
    "linear": "lin_api_" + A32,
    "notion": "ntn_" + A32,
    "notion-old": "secret_" + A32,
    "replicate": "r8_" + A32,
    "hf": "hf_" + A32,
    "openai": "sk-proj-" + A32,
    "anthropic": "sk-ant-api03-" + A32,
    "groq": "gsk_" + A32,
    "xai": "xai-" + A32,
    "perplexity": "pplx-" + A32,
    "nvidia": "nvapi-" + A32,
    "wandb": "wandb_v1_" + A32,
    "databricks": "dapi" + H32,
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0." + A32,
    "neptune": "eyJhcGlfYWRkcmVzcyI6Imh0dHBzOi8vYXBwLm5lcHR1bmUuYWkifQ==",
    "azure-client": "abc8Q~" + A32,
    "azure-storage": "aB3d" * 21 + "xY" + "==",
    "azure-devops": "abcdefghijklmnopqrstuvwxyz234567abcdefghijklmnopqrst",
    "vault": "hvs." + A32,
    "terraform": "aB3dE6gH9jK2mN.atlasv1." + A32,
    "grafana": "glsa_" + A32,
    "sentry": "sntrys_" + A32,
    "newrelic": "NRAK-" + "A1B2C3D4E5F6G7H8I9J0K1L2M3N",
    "supabase": "sbp_" + H32,
    "netlify": "nfp_" + A32,
    "planetscale": "pscale_tkn_" + A32,
    "fly": "fm2_" + A32,
    "heroku": "HRKU-" + A32,
    "pulumi": "pul-" + H32,
    "doppler": "dp.pt." + A32,
    "postman": "PMAK-" + H32,
    "figma": "figd_" + A32,
    "airtable": "patAbCdEfGhIjKlMn." + H32,
    "atlassian": "ATATT3" + A32,
    "hubspot": "pat-na1-" + H32,
    "dropbox": "sl." + A32,
    "facebook": "EAA" + A32,
    "square": "sq0atp-" + A32,
    "rubygems": "rubygems_" + H32,
    "buildkite": "bkua_" + H32,
    "circleci": "CCIPAT_" + A32,
    "sonar": "sqp_" + H32,
    "jfrog": "AKCp" + A32,
    "tailscale": "tskey-auth-" + A32,
    "age": "AGE-SECRET-KEY-1" + A32.upper(),
    "prefect": "pnu_" + A32,
    "crates": "cio" + A32,
    "nuget": "oy2" + A32.lower() + "abcdefghijk",
    "clojars": "CLOJARS_" + H32,
    "typeform": "tfp_" + A32,
    "langsmith": "lsv2_pt_" + A32,
    "langfuse": "sk-lf-" + A32,
    "pinecone": "pcsk_" + A32,
    "elevenlabs": "sk_" + H32,
    "okta": "00" + A32 + "abcd_EFG",
    "1password": "ops_eyJ" + A32,
    "pem": "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
    "pgp": "-----BEGIN PGP PRIVATE KEY BLOCK-----\nlQOY\n-----END PGP PRIVATE KEY BLOCK-----",
}

HARMLESS = (
    "ratioscope sync out/run-1 --to mlflow",
    "runs/2026-11-30_18-14-35/checkpoint-1200/model.safetensors",
    "commit 98b6d21f0e3c4a5b6c7d8e9f00112233445566aa",
    "sampling/raw_importance_sampling_ratio/min",
    "Qwen/Qwen2.5-0.5B-Instruct, basic arithmetic_word problems",
    "/home/User1/projects/ExperimentNumber/out",
    "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "access: denied; refresh: none",
    "max_tokens=512, pad_token='<pad>', pin_memory=True",
)

SECRET_NAMES = [
    "dbpass",
    "pw",
    "pin",
    "otp",
    "authz",
    "service_account_json",
    "sshkey",
    "id_rsa",
    "id_ed25519",
    "pem",
    "cert",
    "webhook",
    "webhook_url",
    "slack_webhook",
    "dsn",
    "SENTRY_DSN",
    "connection_string",
    "conn_str",
    "hf",
    "HF",
    "hf_tok",
    "tok",
    "session_id",
    "sessionid",
    "csrf",
    "mfa",
    "seed_phrase",
    "mnemonic",
    "kms_key",
    "access",
    "db_password",
    "x-api-key",
    "hub_token",
    "recovery_code",
    "totp",
    "client_secret",
]
HARMLESS_NAMES = [
    "max_tokens",
    "tokenizer",
    "pin_memory",
    "top_p",
    "access_mode",
    "seed",
    "dataset_id",
    "session",
    "pad_token",
    "num_tokens",
    "n_tok",
    "hf_model",
    "string",
    "phrase",
    "connection",
    "account_name",
    "refresh_rate",
    "cert_path",
    "spin",
    "opinion",
    "certain",
    "token_level",
    "pinned",
    "key",
    "keys",
]


@pytest.mark.parametrize("name", FORMATS)
def test_a_vendors_secret_is_hidden_in_any_text(name: str) -> None:
    """A vendor's secret is recognized by its format, without a name that announces it."""
    secret = FORMATS[name]
    text = outgoing(f"got {secret} from there")
    assert REDACTED in text
    assert secret[-12:] not in text
    assert text.endswith(" from there")


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_text_is_unchanged(text: str) -> None:
    """Paths, commits, metric names and settings are no secrets."""
    assert outgoing(text) == text


def test_names_of_secrets() -> None:
    """Names that announce a secret are recognized, and similar harmless names are not."""
    assert [name for name in SECRET_NAMES if not is_secret_name(name)] == []
    assert [name for name in HARMLESS_NAMES if is_secret_name(name)] == []


@pytest.mark.parametrize(
    "text",
    [
        "API request to http://bob:S3cr3tHunter@127.0.0.1:1/api failed",
        "GET https://host/x?access_token=S3cr3tHunter&n=1",
        "401 with header Authorization: Bearer S3cr3tHunter99",
        "could not connect: password=S3cr3tHunter host=db",
    ],
)
def test_exception_texts_leave_without_secrets(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """Exception texts quote URLs and headers; the warning about them hides passwords and tokens."""
    with caplog.at_level(logging.DEBUG, logger="ratioscope"):
        with Incidents().guard("mlflow write"):
            raise RuntimeError(text)
        log.warning("failed: %s", text)
    assert len(caplog.messages) == 2
    assert "S3cr3t" not in caplog.text
    assert REDACTED in caplog.text


def test_environment_secret_is_hidden_in_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The value of an environment variable that names a secret is hidden without any format."""
    monkeypatch.setenv("VENDOR_API_KEY", "plainword-without-format")
    log.warning("server refused %s", "plainword-without-format")
    assert "plainword" not in caplog.text


@pytest.mark.parametrize("command", ["check", "report", "diagnose"])
def test_errors_of_commands_are_safe_to_print(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Printed errors have no terminal sequence and no secret of the argument that they quote."""
    path = "/nope/\x1b[31m\x07/glpat-aB3dE6gH9jK2mN5pQ8sT"
    limit = ["--max", "ratioscope/kl/k1=1"] if command == "check" else []
    assert main([command, path, *limit]) != 0
    printed = "".join(capsys.readouterr())
    assert not {"\x1b", "\x07"} & set(printed)
    assert "glpat" not in printed


def test_wrong_usage_is_safe_to_print(capsys: pytest.CaptureFixture[str]) -> None:
    """Usage errors quote arguments without terminal sequences."""
    with pytest.raises(SystemExit):
        main(["report", "x", "\x1b[31mextra"])
    assert "\x1b" not in capsys.readouterr().err
