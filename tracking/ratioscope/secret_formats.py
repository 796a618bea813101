"""Formats of vendors' secrets, which are recognized wherever they stand in a text."""

from __future__ import annotations

import re

_PREFIXES = {
    # Prefixes that a vendor reserves for its secrets, so that scanners find them; 8 or more characters follow.
    "GitLab": r"gl(?:pat|rt|rtr|dt|cbt|ptt|ft|soat|imt|agent|oas|ffct|wt)-|GR1348941|gloas-",
    "GitHub": r"gh[opusr]_|github_pat_",
    "Slack": r"xox[a-z](?:\.xox[a-z])?-|xapp-\d-",
    "Stripe": r"[srp]k_(?:live|test)_|whsec_",
    "npm, Docker, RubyGems, Clojars": r"npm_(?=\w{20})|dckr_[op]at_|rubygems_(?=[0-9a-f]{20})|CLOJARS_",
    "PyPI": r"pypi-Ag",
    "DigitalOcean": r"do[oprt]_v1_",
    "Shopify": r"shp(?:at|ca|pa|ss|ua|it)_",
    "Linear, Notion": r"lin_(?:api|oauth)_|ntn_|secret_(?=[A-Za-z0-9]{32})",
    "Replicate, Groq, xAI, Perplexity": r"r8_|gsk_|xai-(?=\w{16})|pplx-(?=\w{16})",
    "Fireworks, Together, Cerebras, Jina, Tavily": r"fw_(?=\w{16})|tgp_v1_|csk-(?=\w{16})|jina_(?=\w{20})|tvly-",
    "Pinecone, LangSmith, Langfuse": r"pcsk_|lsv2_(?:pt|sk)_|[ps]k-lf-",
    "NVIDIA, W&B, RunPod, Anyscale, Kaggle": r"nvapi-|wandb_v1_|rpa_(?=\w{20})|esecret_|KGAT_",
    "Google": r"ya29\.|GOCSPX-|1//0(?=[\w-]{20})",
    "Hashicorp Vault": r"hv[sbr]\.",
    "Grafana, Sentry, New Relic": r"glsa_|glc_|sntry[su]_|NR(?:AK|JS|II|RA)-",
    "Supabase, Netlify, Render, PlanetScale": r"sb[pa]_(?=\w{16})|sb_secret_|nfp_|rnd_(?=\w{16})|pscale_(?:tkn|oauth"
    r"|pw)_",
    "Fly, Heroku, Pulumi, Doppler": r"fm[12]_|fo1_|HRKU-|pul-(?=[0-9a-f]{20})|dp\.(?:pt|st|ct|sa|scim|audit)\.",
    "Atlassian, HubSpot, Postman, Figma": r"AT(?:ATT|CTT|BB)\w?|pat-(?:na|eu|ap)\d-|PMAK-|fig[dou]r?_(?=\w{16})",
    "Dropbox, Square, PayPal": r"sl\.(?:u\.)?(?=[\w-]{20})|sq0[a-z]{3}-|access_token\$(?:production|sandbox)\$",
    "Buildkite, CircleCI, JFrog, Sonar": r"bk[ua]a_|CCIPAT_|CCIPRJ_|AKCp|cmVmdGtu|sq[pua]_(?=[0-9a-f]{20})",
    "Tailscale, 1Password, age, Prefect": r"tskey-|ops_eyJ|AGE-SECRET-KEY-1|pn[ub]_(?=\w{20})",
    "crates.io, NuGet, Typeform": r"cio(?=[A-Za-z0-9]{32})|oy2(?=[a-z0-9]{43})|tfp_(?=\w{20})",
    "Amazon MWS, Databricks": r"amzn\.mws\.|(?:dapi|dkea|dose|dsapi)(?=[0-9a-f]{16})",
    "Facebook": r"EAA(?=[A-Za-z0-9]{30})",
    "ElevenLabs": r"sk_(?=[0-9a-f]{32})",
}
"""Vendor -> pattern of the prefix."""

_FORMATS = {
    "private keys in PEM": r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.*?"
    r"(?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
    "Hugging Face": r"hf_(?=[A-Za-z]*\d)[A-Za-z0-9]{8,}|hf_[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{16,}",
    "OpenAI, Anthropic, OpenRouter, DeepSeek": r"(?<![A-Za-z0-9])sk-(?:(?=[\w-]{0,64}\d)[\w-]{12,}|[A-Za-z0-9]{20,})",
    "AWS key id": r"(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{12,}",
    # 40 characters of base64 are also a path or a word; a path has long runs of small letters.
    "AWS secret key": r"(?<![\w/+=.-])(?=\S{0,39}[a-z])(?=\S{0,39}[A-Z])(?=\S{0,39}[\d/+])(?!\S{0,33}[a-z]{7})"
    r"(?![0-9a-fA-F]{40})[A-Za-z0-9/+]{40}(?![\w/+=.-])",
    "Google API key": r"AIza[\w-]{30,}",
    "Slack and Discord webhooks": r"hooks\.slack(?:-gov)?\.com/[^\s\"'<>]+"
    r"|discord(?:app)?\.com/api/(?:v\d+/)?webhooks/[^\s\"'<>]+",
    "Teams and Zapier webhooks": r"(?<![\w-])[\w-]{1,64}\.webhook\.office\.com/[^\s\"'<>]+"
    r"|hooks\.zapier\.com/[^\s\"'<>]+",
    "Discord bot": r"(?<![\w-])[MNO][\w-]{22,28}\.[\w-]{6,7}\.[\w-]{27,}",
    "Telegram bot": r"(?<!\d)\d{8,10}:[\w-]{35}(?![\w-])",
    "Twilio": r"(?<![A-Za-z0-9])(?:SK|AC)[0-9a-f]{32}",
    "SendGrid": r"(?<![A-Za-z0-9])SG\.[\w-]{16,}\.[\w-]{16,}",
    "Mailgun, Mailchimp": r"(?<![A-Za-z0-9])(?:key-[0-9a-f]{32}|[0-9a-f]{32}-[0-9a-f]{8}-[0-9a-f]{8}"
    r"|[0-9a-f]{32}-us\d{1,2})",
    "Azure client secret": r"(?<![\w~.-])[\w~.-]{3}\dQ~[\w~.-]{31,34}",
    "Azure storage key": r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{86}==",
    "Azure DevOps": r"(?<![A-Za-z0-9])(?=[a-z]{0,51}[2-7])[a-z2-7]{52}(?![A-Za-z0-9])"
    r"|\b[A-Za-z0-9]{76}AZDO[A-Za-z0-9]{4}",
    "Terraform Cloud": r"[A-Za-z0-9]{14}\.atlasv1\.[\w-]{16,}",
    "Airtable": r"(?<![A-Za-z0-9])pat[A-Za-z0-9]{14}\.[0-9a-f]{32,}",
    "Okta": r"(?<![\w-])00(?=[\w-]{0,39}[a-z])(?=[\w-]{0,39}[A-Z])[\w-]{40}(?![\w-])",
    "Twitter": r"A{20,}[\w%]{30,}",
    "JWT, and base64 of JSON as in Neptune's tokens": r"eyJ[\w-]{4,}\.[\w-]{4,}(?:\.[\w-]*)*"
    r"|(?<![\w])eyJ[\w+/-]{40,}={0,2}",
}
"""Vendor -> pattern of the whole secret."""

SHAPES = re.compile(
    "|".join([*_FORMATS.values(), rf"(?<![A-Za-z0-9])(?:{'|'.join(_PREFIXES.values())})[\w.-]{{8,}}"]), re.DOTALL
)
"""Matches any of the formats above."""
