#!/usr/bin/env bash
# gpu_tests_test.sh GPU_TESTS: what it selects, how it ends, and what it writes, on a machine that seems to have one GPU.
set -euo pipefail
bundle=$TEST_TMPDIR/bundle
mkdir -p "$bundle/bin" "$bundle/site/torch/lib"
cp "$1" "$bundle/gpu_tests"
cd "$bundle"
export LIBTORCH_SITE=$bundle/site PATH=$bundle/bin:$PATH
echo 2.15 >torch_version
echo "__version__ = '2.15.0+cu130'" >site/torch/version.py
printf '#!/bin/sh\necho 0\n' >bin/nvidia-smi

# Says what its cases are. One of them fails, one does not end, and the rest pass.
cat >pretender <<'END'
#!/usr/bin/env bash
case $1 in
  --gtest_list_tests) printf 'Running main()\nGood.\n  One\n  Two/0  # GetParam() = 1\nBad.\n  Fails\n  Hangs\n' ;;
  --gtest_filter=Bad.Fails) echo "said by Fails" && exit 1 ;;
  --gtest_filter=Bad.Hangs) sleep 1000 ;;
esac
END
# The losses of the GPU are a little off, or with ZBV far off.
cat >train_gpt_cuda <<'END'
#!/usr/bin/env bash
loss=1.5
if [[ $* == *cuda* ]]; then loss=1.5004; fi
if [[ $* == *ZBV*cuda* ]]; then loss=1.6; fi
for step in 0 1 2 3 4; do echo "{\"step\":$step,\"loss\":$loss}"; done
END
chmod +x pretender train_gpt_cuda bin/nvidia-smi
for name in libtorch_nccl_test comms_nccl_test nvtx_ranges_test executor_on_gpus; do cp pretender "$name"; done

expect() { # WHAT, to be in what the last command said
  grep -qxE -- "$1" said || { cat said >&2; echo "error: expected the line: $1" >&2; exit 1; }
}
must_fail() { # COMMAND...
  if "$@" >said 2>&1; then cat said >&2; echo "error: succeeded: $*" >&2; exit 1; fi
}

./gpu_tests --list >said
expect "1 comms_nccl_test Good.Two/0"
expect "1 executor_on_gpus Bad.\*" # by suite
expect "1 train --pp 2 --schedule ZBV"
[[ $(wc -l <said) == 17 ]]

./gpu_tests --only 'comms.*Good|replicate' --table table >said
expect "passed +[0-9]+ s  1 comms_nccl_test Good.One"
expect "passed +[0-9]+ s  1 train --pp 2 --dp-replicate 2 --schedule Interleaved1F1B"
expect "3 passed, 0 failed, 0 not run, 1 devices"
[[ $(wc -l <table) == 3 ]]

# Goes on where it was; what failed or was stopped runs again.
must_fail ./gpu_tests --only comms --seconds 2 --table table
expect "FAILED  +[0-9]+ s  1 comms_nccl_test Bad.Fails"
expect "    said by Fails"
expect "FAILED  +[0-9]+ s  1 comms_nccl_test Bad.Hangs"
expect "    stopped: the time was over"
expect "2 passed, 2 failed, 0 not run, 1 devices"
[[ $(wc -l <table) == 5 ]]
cp table.failures said
expect "=== 1 comms_nccl_test Bad.Fails"
expect "said by Fails"

must_fail ./gpu_tests --only 'Bad.Hangs|Interleaved' --seconds 1
expect "not run +0 s  1 train --pp 2 --dp-replicate 2 --schedule Interleaved1F1B"
must_fail ./gpu_tests --only ZBV
expect "FAILED  +[0-9]+ s  1 train --pp 2 --schedule ZBV"

must_fail ./gpu_tests --only nothing
expect "error: --only: no test matches \`nothing\`"
must_fail ./gpu_tests --only '('
expect "error: --only: .*"
must_fail ./gpu_tests --seconds 0
expect ".*error: argument --seconds: expected a number above 0, got \`0\`"
echo "__version__ = '2.11.0'" >site/torch/version.py
must_fail ./gpu_tests
expect "error: expected torch 2.15 in $LIBTORCH_SITE"
