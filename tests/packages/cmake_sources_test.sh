#!/usr/bin/env bash
# cmake_sources_test.sh CMAKE_LISTS COMMAND_LABELS LIBRARY_LABELS SOURCES
set -euo pipefail
"$1" "$2" "$3" | diff "$4" - || { echo "error: cmake/sources.cmake is out of date: run tools/cmake_sources" >&2; exit 1; }
