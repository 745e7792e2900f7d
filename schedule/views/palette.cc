#include "pipewright/schedule/views/palette.h"

namespace pipewright::schedule {
namespace {

constexpr std::array<std::string_view, 3> all(std::string_view color) {
  return {color, color, color};
}

enum Index {
  kForward,
  kBackward,
  kInput,
  kWeight,
  kCompound,
  kSend,
  kReceive,
  kData,
  kWait,
  kIdle
};
constexpr Paint kPalette[] = {
    {"F forward", "34", {"#8fb8e8", "#bcd7f5", "#6d9ed6"}},           // blue
    {"B backward", "32", {"#94cf94", "#c3e6c1", "#6fb56f"}},          // green
    {"I backward, input", "36", {"#7fd0c8", "#b5e6e0", "#57b3aa"}},   // teal
    {"W backward, weight", "33", {"#f2d479", "#f9e8b4", "#dcb84f"}},  // yellow
    {"F and B overlapped", "35", all("#d6a8d6")},                     // magenta
    {"SEND", "2", all("#9a9a9a")},                                    // dim; grey
    {"RECV", "2", all("#c46a6a")},                                    // dim; red
    {"UNSHARD, RESHARD, REDUCE_GRAD", "", all("#b79ad6")},            // violet in figures
    {"WAIT", "", all("#e0c9a6")},                                     // tan in figures
    {"idle", "", all("#ffffff")},
};

}  // namespace

std::span<const Paint> palette() { return kPalette; }

const Paint& paint_of(ir::ActionKind kind) {
  switch (kind) {
    case ir::ActionKind::kForward:
      return kPalette[kForward];
    case ir::ActionKind::kBackward:
      return kPalette[kBackward];
    case ir::ActionKind::kBackwardInput:
      return kPalette[kInput];
    case ir::ActionKind::kBackwardWeight:
      return kPalette[kWeight];
    case ir::ActionKind::kOverlapFB:
      return kPalette[kCompound];
    case ir::ActionKind::kSendF:
    case ir::ActionKind::kSendB:
      return kPalette[kSend];
    case ir::ActionKind::kRecvF:
    case ir::ActionKind::kRecvB:
      return kPalette[kReceive];
    case ir::ActionKind::kUnshard:
    case ir::ActionKind::kReshard:
    case ir::ActionKind::kReduceGrad:
      return kPalette[kData];
    case ir::ActionKind::kWaitSendF:
    case ir::ActionKind::kWaitSendB:
    case ir::ActionKind::kWaitReduceGrad:
      return kPalette[kWait];
    case ir::ActionKind::kIdle:
      break;
  }
  return kPalette[kIdle];
}

}  // namespace pipewright::schedule
