#!/bin/sh
# Puts .plan files into a C++ list, sorted by name: embed.sh FILE... >ready_files.inc
set -eu
for plan in $(ls "$@" | LC_ALL=C sort); do
  printf '{"%s", R"PLAN(' "$(basename "$plan" .plan)"
  cat "$plan"
  printf ')PLAN"},\n'
done
