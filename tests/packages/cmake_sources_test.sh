#!/usr/bin/env bash
# cmake_sources_test.sh CMAKE_LISTS COMMAND_LABELS LIBRARY_LABELS PUBLIC_HEADERS SOURCES
set -euo pipefail
"$1" "$2" "$3" "$4" | diff "$5" - || { echo "error: cmake/sources.cmake is out of date: run tools/cmake_sources" >&2; exit 1; }
