#!/usr/bin/env bash
# The declarations in third_party/gloo serve as long as a program over Gloo calls no more than this of it, and has no class of
# Gloo's in its own objects: gloo_symbols_test.sh PROGRAM
set -euo pipefail
expected="U gloo::Context::setTimeout(std::chrono::duration<long, std::ratio<1l, 1000l> >)"
found=$(nm --demangle "$1" | grep -E '^ *[0-9a-f]* [A-Za-z] ([a-z]+ )*gloo::' | sed 's/^[ 0-9a-f]*\([A-Za-z] \)/\1/' | sort -u)
if [[ $found != "$expected" ]]; then
  printf 'expected:\n%s\nfound:\n%s\n' "$expected" "$found"
  exit 1
fi
