"""The public headers: what users of pipewright may include.

Only these are headers of //:compiler and //:pipewright, installed by CMake and documented by tools/api_docs. A public header
includes only public ones of ours (//tests/docs:public_headers_test). All others are private to this tree.
"""

# Without LibTorch: the headers of //:compiler, and of CMake's component `schedule`.
COMPILER_HEADERS = [
    # Schedules as values: actions, placements, compute orders and programs, what a run of them is; diagnostics and errors.
    "ir/action.h",
    "ir/action_kind.h",
    "ir/action_kinds.def",
    "ir/channel.h",
    "ir/check.h",
    "ir/dependencies.h",
    "ir/diagnostic.h",
    "ir/errors.h",
    "ir/lowering.h",
    "ir/placement.h",
    "ir/rules.def",
    "ir/schedule.h",
    "ir/tables.h",
    "ir/timeline.h",
    # Their text forms: files of all formats, recordings, and diagnostics as a terminal shows them.
    "ir/text/action_text.h",
    "ir/text/read.h",
    "ir/text/render.h",
    "ir/text/schedule_json.h",
    "ir/text/shape.h",
    # The catalogue of schedules.
    "schedules/registry.h",
    "schedules/schedule_spec.h",
    # From a name, a file or a schedule in memory to a verified program and its simulation.
    "schedule/compile/compile.h",
    "schedule/graph/channel_graph.h",
    "schedule/graph/deadlock.h",
    "schedule/graph/peaks.h",
    "schedule/lowering/lower.h",
    "schedule/simulate/memory_parts.h",
    "schedule/simulate/report.h",
    "schedule/verify/verify.h",
    # Costs: written by hand, read from files, taken from a recording.
    "schedule/problem/costs.h",
    "schedule/problem/costs_json.h",
    "schedule/problem/layers.h",
    "schedule/simulate/recorded_costs.h",
    # Search, and lower bounds.
    "schedule/bounds/bounds.h",
    "schedule/bounds/schedule_bound.h",
    "schedule/problem/problem.h",
    "schedule/search/cuts.h",
    "schedule/search/front.h",
    "schedule/search/search.h",
    # Views of schedules and timelines.
    "schedule/views/diff.h",
    "schedule/views/html.h",
    "schedule/views/svg.h",
    "schedule/views/table.h",
    "schedule/views/timeline_text.h",
    "schedule/views/trace.h",
]

# Over LibTorch: what //:pipewright has besides, and CMake's component `executor`.
TRAINING_HEADERS = [
    # Ranks: a world, process groups over it, what launchers say, agreement through the store.
    "comms/gloo/gloo.h",
    "comms/mesh.h",
    "comms/process/environment.h",
    "comms/process/error_file.h",
    "comms/side_stream.h",
    "comms/store_rounds.h",
    "comms/threads/threads.h",
    "comms/world.h",
    # The executor, and what it takes and returns.
    "executor/action_function.h",
    "executor/executor.h",
    "executor/loss_function.h",
    "executor/microbatches.h",
    "executor/module_stage.h",
    "executor/slice_cache.h",
    "executor/stage.h",
    "executor/step_lock.h",
    "executor/tensor_meta.h",
    # Wrappers of modules, and how wrapped modules are called, stored, clipped and scaled.
    "autograd/checkpoint.h",
    "autograd/kept_results.h",
    "autograd/split_backward.h",
    "ddp/replicate.h",
    "fsdp/fully_shard.h",
    "layout/layout.h",
    "modules/clip_grad_norm.h",
    "modules/data_parallel.h",
    "modules/distribution.h",
    "modules/forward.h",
    "modules/forward_tensors.h",
    "modules/grad_scaler.h",
    "modules/meta.h",
    "modules/mixed_precision.h",
    "modules/tensors.h",
    "modules/tied_parameters.h",
    "tp/cross_entropy.h",
    "tp/parallelize.h",
    # Checkpoints.
    "checkpoint/dtypes.def",
    "checkpoint/durable_file.h",
    "checkpoint/load.h",
    "checkpoint/manifest.h",
    "checkpoint/safetensors.h",
    "checkpoint/save.h",
    "checkpoint/stored_checkpoint.h",
    "checkpoint/torch/optimizer_state.h",
    "checkpoint/torch/training_state.h",
]

# With CUDA: what //:pipewright_cuda has besides.
CUDA_HEADERS = [
    "comms/nccl/nccl.h",
    "comms/nccl/nccl_options.h",
    "executor/nvtx_ranges.h",
]
