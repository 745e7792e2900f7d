#!/usr/bin/env bash
# Runs a Python program with the PyTorch of @torch_site: run_with_torch.sh SITE_PATH_FILE PROGRAM ARGUMENTS
set -euo pipefail
PYTHONPATH=$(cat "$1") PYTHONDONTWRITEBYTECODE=1 exec python3 "${@:2}"
