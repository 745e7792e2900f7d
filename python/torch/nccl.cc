#include "pipewright/python/torch/nccl.h"

#include <pybind11/pybind11.h>

PYBIND11_MODULE(_nccl, m) {
  const pipewright::python::NcclBackends backends = &pipewright::comms::nccl_backends;
  m.attr("backends") =
      pybind11::capsule(reinterpret_cast<void*>(backends), pipewright::python::kNcclBackends);
}
