#!/usr/bin/env bash
# Makes the virtual environment that `make demo` and `make test` run in.
# usage: [PYTHON=python3] scripts/setup.sh [VENV]
#
# pip's own configuration is left alone (PIP_EXTRA_INDEX_URL, PIP_INDEX_URL, pip.conf): that is where a machine says
# which index has its torch.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
venv=${1:-.venv}
requirements=requirements/demo-cpu.txt

"$python" - <<'CHECK'
import sys
if sys.version_info < (3, 11):
    sys.exit(f"error: Python {sys.version.split()[0]}; ratioscope needs 3.11 or newer: make PYTHON=python3.11 ...")
CHECK

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check)

# torch on its own first: if no index has its CPU build, say so before gigabytes of anything else.
if ! "${pip[@]}" install --constraint "$requirements" torch; then
    cat >&2 <<HINT

error: pip found no CPU build of torch, as pinned in $requirements.
       PyPI does not have it for Linux. Set PIP_EXTRA_INDEX_URL to PyTorch's CPU wheel index,
       named on pytorch.org/get-started/locally, and try again.

HINT
    exit 1
fi

"${pip[@]}" install --requirement "$requirements" --editable '.[all,dev]'

# vLLM asks for these, text models do not use them, and PyPI builds them for another torch: transformers would fail to
# import them.
"${pip[@]}" uninstall --quiet --yes torchvision torchaudio torchcodec

touch "$venv/.ready"
