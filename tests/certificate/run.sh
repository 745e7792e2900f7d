#!/usr/bin/env bash
# Prints plans, simulates them, and has check.py check the results: run.sh PIPEWRIGHT CHECK BOUNDS, which is bounds.cc.
set -euo pipefail
pipewright=$PWD/$1 check=$PWD/$2 bounds=$PWD/$3
cd "${TEST_TMPDIR:?}"

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
found() {  # COSTS RANKS MICROBATCHES PLACEMENT MEMORY [OPTION...]: what search finds, and the bound that it claims
  "$pipewright" search --costs "$1" --ranks "$2" --microbatches "$3" --placement "$4" --memory "$5" --budget small --json \
    -o schedule.plan "${@:6}" >claim.json
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

# Slices, of which later ones take longer.
cat >slices.json <<'JSON'
{"version": 1, "forward": [2, 3, 2, 2], "backward_input": 2.5, "backward_weight": 1.5, "latency": 0.125, "bandwidth": 1e4,
 "microbatch_scale": [1, 1, 2, 1], "slice_scale": [0.75, 1.25], "activation_bytes": 600, "weight_input_bytes": 200,
 "output_bytes": 200, "input_gradient_bytes": 100, "parameter_bytes": 700, "gradient_bytes": 400}
JSON
sed 's/\[2, 3, 2, 2\]/2/' slices.json >slices_i.json
for name in GPipe Seq1F1B; do
  "$pipewright" print $name --ranks 4 --microbatches 4 --slices 2 --level compute_only --format plan >schedule.plan
  judge slices.json
  judge slices.json --memory 4
done
"$pipewright" print Seq1F1B-I --ranks 4 --microbatches 4 --slices 2 --level compute_only --format plan >schedule.plan
judge slices_i.json --memory-bytes 6000
found slices.json 4 4 loop 1.5 --slices 2
found slices.json 2 4 v 1 --slices 2

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
recomputed recompute.json 2 6 v 1.25 "2"

# Stages that offload, of one or more stages per rank: some copies are hidden, others are what takes longest. Times are sums of
# powers of two, because what begins when something else ends is decided by the last bit.
offload() {  # NAME LINK COSTS STAGES [OPTION...]: a copy takes LINK
  sed "s/LINK/$2/g" >offload.json <<<"$3"
  "$pipewright" print "$1" --ranks 4 --microbatches 8 --level compute_only --offload "$4" --format plan >schedule.plan
  judge offload.json "${@:5}"
}
sizes='"activation_bytes": 96, "weight_input_bytes": 16, "parameter_bytes": 64, "gradient_bytes": 32, "shard_bytes": 8, "optimizer_bytes": 24'
some='{"version": 1, "latency": 0.25, "offload_bytes": [0, 64, 128, 32], "offload": LINK, "reload": [LINK, LINK, 0.5, LINK], '$sizes'}'
two='{"version": 1, "overlap": 0.5, "offload_bytes": [96, 0, 32, 0, 64, 8, 0, 0], "offload": LINK, "reload": LINK, '$sizes'}'
for name in 1F1B ZB-H1 GPipe; do
  offload $name 0.5 "$some" 1,2,3
  offload $name 4 "$some" 1,2,3
  offload $name 4 "$some" 2
done
for name in Interleaved1F1B V-Half DualPipeV; do
  offload $name 4 "$two" 0,2,4,5
  offload $name 2 "$two" 0,2,4,5 --memory-bytes 4000
done
recomputing=${some/\"version\": 1/\"version\": 1, \"checkpoint_bytes\": 48, \"recompute\": 0.5}
"$pipewright" print 1F1B --ranks 4 --microbatches 8 --level compute_only --format plan | sed '/^placement/a recompute: 1 3\noffload: 1 2 3' >schedule.plan
sed "s/LINK/1/g" <<<"$recomputing" >offload.json
judge offload.json --memory-bytes 1000

# Every bound that lower_bounds() returns has been checked.
names=$(sed -n '/ lower_bounds(/,/^}/p' "$bounds" | grep -oE '[a-z_]+\(instance\)')
[[ $(wc -w <<<"$names") -ge 10 ]]
for name in ${names//(instance)/}; do
  grep -qx "$name" names.txt || { echo "no result has the bound $name"; exit 1; }
done

# A wrong claim is found, and named. judge() has found the result right that each of them alters.
wrong() {  # ERROR SED: of the last result
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
wrong 'activations of rank 0' 's/"peak_activations_step": 3/"peak_activations_step": 4/'
wrong 'makespan: ' 's/"makespan": /"makespan": 1/'
wrong 'bubble rate: ' 's/"bubble_rate": 0/"bubble_rate": 1/'
wrong 'span of rank 0: ' 's/"span": /"span": 1/'
wrong 'busy of rank 0: ' 's/"busy": /"busy": 1/'
wrong 'idle of rank 0: ' 's/"idle": /"idle": 1/'
wrong 'exposed_communication of rank 0: ' 's/"exposed_communication": /"exposed_communication": 1/'
wrong 'bytes of rank 0' 's/"peak_bytes": null/"peak_bytes": 5/'
wrong 'path: start of 0F0: ' 's/"action": "0F0", "start": 0/"action": "0F0", "start": 1/'
wrong 'path: ' '0,/{"rank": 0, "step": 0, "action"/{/{"rank": 0, "step": 0, "action"/d}'
wrong 'keys' 's/"gap"/"proof": 1, "gap"/'
wrong 'unit: ' 's/"unit": null/"unit": "ms"/'
wrong 'activation of stage 0: ' 's/"activation": \[1/"activation": [2/'
# More memory makes the bound smaller, and the schedule does not fit into less.
wrong 'bound warm_up_and_cool_down: ' 's/"memory_limits": \[4, 4, 4, 4\]/"memory_limits": [5, 5, 5, 5]/'
wrong 'memory of rank 1' 's/"memory_limits": \[4, 4, 4, 4\]/"memory_limits": [4, 2, 4, 4]/'
# What is on the host is not on the device, and copies take their time.
offload 1F1B 4 "$some" 1,2,3 --memory-bytes 1000
wrong 'gradients of rank 0: ' '0,/"gradients": 32/s/"gradients": 32/"gradients": 16/'
wrong 'bound copies: ' 's/"value": \([0-9]*\)/"value": \11/'
wrong 'bound work: ' 's/"name": "copies"/"name": "work"/'
wrong 'terms' 's/"copies": \([0-9]*\)/"copies": 1\1/'
wrong 'bytes of rank 0: ' '0,/"peak_bytes": /s/"peak_bytes": /"peak_bytes": 1/'
wrong 'activation of stage 1: ' 's/"activation": \[96, 32/"activation": [96, 96/'
wrong 'memory of rank 0' 's/"memory_limits": \[[0-9]*/"memory_limits": [200/'
echo "$checked results are as claimed"
