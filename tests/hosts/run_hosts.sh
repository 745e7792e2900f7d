#!/usr/bin/env bash
exec python3 "$@"
