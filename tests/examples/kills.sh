#!/usr/bin/env bash
# Runs kills.py with the arguments that follow its path.
set -euo pipefail
exec python3 "$@"
