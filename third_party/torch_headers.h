// What most files that use LibTorch include, directly or not: parsed once by //third_party:torch.
// Files include what they use all the same; `--config=no-precompiled-headers` shows whether they
// do.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>
