#include "pipewright/schedules/catalogue.h"

namespace pipewright::schedules {
namespace {

constexpr ReadyFile kReadyFiles[] = {
#include "schedules/ready_files.inc"
};

}  // namespace

std::span<const ReadyFile> ready_files() { return kReadyFiles; }

}  // namespace pipewright::schedules
