#!/usr/bin/env bash
# Prints plans, simulates them, and has check.py check the results: run.sh PIPEWRIGHT CHECK.
set -euo pipefail
pipewright=$1 check=$2
cd "${TEST_TMPDIR:?}"
pipewright=$OLDPWD/$pipewright check=$OLDPWD/$check

cat >uniform.json <<'JSON'
{"version": 1, "forward": 18.522, "backward_input": 18.086, "backward_weight": 9.337, "latency": 0.601}
JSON
# Ranks of different speed, links with a bandwidth, a slow microbatch.
cat >uneven.json <<'JSON'
{"version": 1, "forward": 3.7, "backward_input": 4.1, "backward_weight": 1.9, "latency": 0.25, "bandwidth": 1e6,
 "output_bytes": 2e5, "input_gradient_bytes": 3e5, "rank_scale": [1, 1.25, 0.75, 1],
 "microbatch_scale": [1, 1, 2, 1, 1, 0.8, 1, 1], "links": [{"from": 1, "to": 2, "latency": 2.5}]}
JSON
unit='{"version": 1}'
echo "$unit" >unit.json

checked=0
>names.txt
judge() {  # COSTS [OPTION...]: of schedule.plan
  costs=$1
  shift
  "$pipewright" simulate schedule.plan --costs "$costs" --json "$@" >result.json
  python3 "$check" schedule.plan "$costs" result.json
  grep -o '"bound": {.*"name": "[a-z_]*"' result.json | sed 's/.*"\(.*\)"/\1/' >>names.txt
  checked=$((checked + 1))
}
run() {  # NAME COSTS RANKS MICROBATCHES [OPTION...]
  "$pipewright" print "$1" --ranks "$3" --microbatches "$4" --level compute_only --format plan >schedule.plan
  judge "$2" "${@:5}"
}
recomputed() {  # COSTS RANKS MICROBATCHES PLACEMENT MEMORY STAGES: the same; the bound is one for all choices of stages
  "$pipewright" search --costs "$1" --ranks "$2" --microbatches "$3" --placement "$4" --memory "$5" --budget small --json \
    --recompute -o schedule.plan >claim.json
  grep -q "^recompute: $6\$" schedule.plan
  judge "$1" --memory "$5"
  python3 -c 'import json; a, b = (json.load(open(f)) for f in ("claim.json", "result.json"))
assert abs(a["cost"] - b["cost"]) < 1e-9 * a["cost"] and a["bound"]["value"] <= b["bound"]["value"] * (1 + 1e-9)'
}
found() {  # COSTS RANKS MICROBATCHES PLACEMENT MEMORY: what search finds, and the bound that it claims
  "$pipewright" search --costs "$1" --ranks "$2" --microbatches "$3" --placement "$4" --memory "$5" --budget small --json \
    -o schedule.plan >claim.json
  judge "$1" --memory "$5"
  python3 -c 'import json; a, b = (json.load(open(f)) for f in ("claim.json", "result.json"))
same = lambda x, y: abs(x - y) < 1e-9 * x
assert same(a["cost"], b["cost"]) and same(a["bound"]["value"], b["bound"]["value"]), (a["bound"], b["bound"])
assert all(a["bound"][key] == b["bound"][key] for key in ("name", "rank", "other")), (a["bound"], b["bound"])'
}

names=$("$pipewright" list --json | python3 -c 'import json, sys; print(*(one["name"] for one in json.load(sys.stdin)["schedules"]))')
for name in $names; do
  run $name unit.json 4 8
  run $name uniform.json 4 8
  run $name uneven.json 4 8
done
run ZB-H1 uniform.json 8 24
run ZB-2p uniform.json 4 16
run V-Half uniform.json 8 24 --memory 6
run V-Min uniform.json 8 24 --memory 4.5
run V-Adaptive uniform.json 8 24
run V-Min uniform.json 8 40
run GPipe unit.json 3 1
run ZB-H1 uniform.json 8 2 --memory 100
run DualPipeV uniform.json 8 24 --memory 9

cat >sizes.json <<'JSON'
{"version": 1, "forward": 2, "backward_input": [2, 2, 3, 2], "backward_weight": 1.5, "latency": 0.125,
 "activation_bytes": [6, 4, 6, 4], "weight_input_bytes": 2}
JSON
found uniform.json 8 24 loop 10
found unit.json 4 8 v 2.5
found unit.json 3 9 wave 2
found uneven.json 4 8 v 3
found sizes.json 4 8 loop 2.5
found sizes.json 2 6 v 2
found uniform.json 2 6 v 1
found uniform.json 3 9 v 1.5
found uneven.json 4 8 v 1.5
found sizes.json 2 6 v 1
found unit.json 4 9 loop 2
found unit.json 4 8 v 1.25

# Compounds hide a part of their time. The catalogue's, and those that search finds.
sed 's/{"version": 1/{"version": 1, "overlap": 0.35/' uniform.json >overlap.json
sed 's/{"version": 1/{"version": 1, "overlap": 0.2/' uneven.json >uneven_overlap.json
for costs in overlap.json uneven_overlap.json; do
  run DualPipeV $costs 4 8
  found $costs 4 8 v 2
  found $costs 4 8 v 3
  found $costs 4 8 v 4.5
  grep -q OVERLAP schedule.plan
  found $costs 4 8 loop 3
  found $costs 4 8 loop 4.5
done

# Bytes: what parameters, gradients and receive buffers leave of them is the memory of the bound.
cat >bytes.json <<'JSON'
{"version": 1, "forward": 2, "backward_input": 2.5, "backward_weight": 1.5, "latency": 0.125, "bandwidth": 1e4,
 "activation_bytes": 600, "weight_input_bytes": 200, "parameter_bytes": [900, 700, 700, 500], "gradient_bytes": 400,
 "output_bytes": 200, "input_gradient_bytes": 100}
JSON
run 1F1B bytes.json 4 8 --memory-bytes 4000
grep -q '"memory_limits": \[2600, 2600, 2600, 2900\]' result.json

cat >recompute.json <<'JSON'
{"version": 1, "forward": [2, 3, 2, 2], "backward_input": 2.5, "backward_weight": 1.5, "latency": 0.125, "recompute": [1, 1, 0.5, 1],
 "activation_bytes": [6, 4, 6, 4], "checkpoint_bytes": 1, "weight_input_bytes": 2}
JSON
recomputed recompute.json 4 8 loop 2 "0 1"
recomputed recompute.json 2 6 v 1.25 "0 2"

# Every bound has been checked.
for name in work one_microbatch warm_up_and_cool_down nested_window memory_area nested_memory_area lifetimes first_backwards \
  whole_microbatches; do
  grep -qx $name names.txt || { echo "no result has the bound $name"; exit 1; }
done

# A wrong claim is found, and named. The result that each of them alters is right.
wrong() {  # ERROR SED: of the last result
  python3 "$check" schedule.plan "$costs" result.json >/dev/null
  sed "$2" result.json >wrong.json
  if cmp -s result.json wrong.json; then echo "nothing to alter: $2"; exit 1; fi
  if python3 "$check" schedule.plan "$costs" wrong.json 2>error.txt; then echo "accepted: $2"; exit 1; fi
  grep "^AssertionError: $1" error.txt || { cat error.txt; exit 1; }
}
run 1F1B uniform.json 4 8 --memory 4
wrong 'cost: ' 's/"cost": \([0-9.]*\)/"cost": \11/'
wrong 'bound warm_up_and_cool_down: ' 's/"value": \([0-9.]*\)/"value": \11/'
wrong 'bound work: ' 's/"name": "warm_up_and_cool_down"/"name": "work"/'
wrong 'gap' 's/"gap": [0-9.]*/"gap": 0.5/'
wrong 'terms' 's/"warm_up": \([0-9.]*\)/"warm_up": 1\1/'
wrong 'activations of rank 0' 's/"peak_activations": 4/"peak_activations": 5/'
# More memory makes the bound smaller, and the schedule does not fit into less.
wrong 'bound warm_up_and_cool_down: ' 's/"memory_limits": \[4, 4, 4, 4\]/"memory_limits": [5, 5, 5, 5]/'
wrong 'memory of rank 1' 's/"memory_limits": \[4, 4, 4, 4\]/"memory_limits": [4, 2, 4, 4]/'
echo "$checked results are as claimed"
