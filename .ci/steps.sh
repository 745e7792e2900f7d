# What .ci/run and .ci/nightly share: steps, each with its time and outcome, and the count at the end. To be sourced.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
broken=()
times=()
not_run=()

# Tests run even where a disk cache has their results. Each run says in a file of events which test.xml it wrote.
tests=(--keep_going --nocache_test_results)
events() { echo "--build_event_json_file=$results/$1.json"; }

step() { # NAME COMMAND...
  echo "=== $1: ${*:2}"
  local started=$SECONDS outcome=passed
  # A step that is late fails: nothing is left out in silence.
  local left=$((limit - SECONDS))
  if ((left <= 0)) || ! timeout --foreground "$left" "${@:2}"; then
    broken+=("$1")
    outcome=FAILED
  fi
  times+=("$(printf '%6d s  %-6s  %s' $((SECONDS - started)) "$outcome" "$1")")
  echo "=== $1: $((SECONDS - started)) s"
}

finish() {
  echo
  printf '%s\n' "${times[@]}"
  printf '%6d s          in all\n' "$SECONDS"
  for name in "${broken[@]-}"; do [[ -z $name ]] || echo "FAILED STEP: $name"; done
  for name in "${not_run[@]-}"; do [[ -z $name ]] || echo "NOT RUN: $name"; done
  python3 .ci/count.py "${#broken[@]}" "$results"/*.json
}
