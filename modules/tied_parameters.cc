// Idea: a sum is not idempotent as an average is, so gradients that accumulate over steps must not
// be added up twice. After a step all copies have the same sum; when the next one begins, only the
// first copy keeps it, and the others begin without a gradient.
//
// Invariant: between steps all copies have equal values and equal gradients, so clipping, scaling
// and the optimizer keep them equal. All ranks go through their ties in the same order, so none
// waits for a rank that waits for it. They start all sums before they wait for the first.
#include "pipewright/modules/tied_parameters.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "pipewright/comms/group_collectives.h"
#include "pipewright/modules/distribution.h"
#include "pipewright/modules/tensors.h"

namespace pipewright::modules {
namespace {

// What all copies of a parameter have in common; more than that if those of this rank differ.
std::string text_of(const std::string& name, const std::vector<at::Tensor>& copies) {
  std::vector<std::string> texts;
  for (const at::Tensor& copy : copies) {
    const layout::LocalLayout where = layout_of(copy);
    texts.push_back(c10::str("`", name, "`, ", copy.scalar_type(), " ", where.layout.text(),
                             ", part ", where.rank));
  }
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return c10::Join(" and ", texts);
}

// For each copy of the parameter, on all ranks, whether it is another tensor than those before it.
std::vector<bool> are_distinct(const std::vector<int>& ranks, const std::vector<at::Tensor>& copies,
                               int rank, c10d::Backend* group) {
  const size_t count = ranks.size();
  std::vector<int64_t> mine(count);
  size_t own = 0;
  for (size_t i = 0; i < count; ++i) {
    if (ranks[i] != rank) continue;
    const auto is_same = [&](const at::Tensor& other) { return other.is_same(copies[own]); };
    mine[i] = std::none_of(copies.begin(), copies.begin() + static_cast<int64_t>(own), is_same);
    ++own;
  }
  std::vector<at::Tensor> all = {at::tensor(mine, at::kLong).to(copies[0].device())};
  if (group) group->allreduce(all)->wait();
  const at::Tensor flags = all[0].cpu();
  const auto* values = flags.const_data_ptr<int64_t>();
  return std::vector<bool>(values, values + count);
}

}  // namespace

// One parameter.
class TiedParameters::Tie final : public Distributor {
 public:
  // `copies` are the distinct ones of this rank, `has_first` says whether they begin with the first
  // of all.
  Tie(std::vector<at::Tensor> copies, bool has_first, comms::BackendPtr group)
      : copies_(std::move(copies)), has_first_(has_first), group_(std::move(group)) {}

  void compare(const std::string& name) const {
    const std::string text = text_of(name, copies_);
    if (group_) comms::compare_lines({text}, *group_, copies_[0].device());
    if (text != text_of(name, {copies_[0]}))
      throw std::invalid_argument("tied parameters: expected equal copies, got " + text);
  }

  void copy_first_value() const {
    if (group_) comms::broadcast_values({copies_[0]}, *group_);
    for (const at::Tensor& copy : copies_) copy.detach().copy_(copies_[0].detach());
  }

  void step_begins() {
    for (size_t i = has_first_ ? 1 : 0; i < copies_.size(); ++i) copies_[i].mutable_grad().reset();
  }

  void start_sum() {
    const c10::NoGradGuard no_grad;
    at::Tensor sum;
    for (const at::Tensor& copy : copies_) {
      if (const at::Tensor& grad = copy.grad(); grad.defined())
        sum = sum.defined() ? sum + grad : grad.contiguous();
    }
    if (!sum.defined()) sum = at::zeros_like(copies_[0]);
    sums_ = {std::move(sum)};
    work_ = group_ && sums_[0].numel() > 0 ? group_->allreduce(sums_) : nullptr;
  }
  void finish_sum() {
    if (work_) work_->wait();
    work_.reset();
    const c10::NoGradGuard no_grad;
    for (at::Tensor& copy : copies_) {
      if (!copy.requires_grad()) continue;
      if (copy.grad().defined())
        copy.mutable_grad().copy_(sums_[0]);
      else
        copy.mutable_grad() = sums_[0].clone();
    }
    sums_.clear();
  }

 private:
  std::vector<at::Tensor> copies_;
  const bool has_first_;
  const comms::BackendPtr group_;  // null: no other rank has copies
  std::vector<at::Tensor> sums_;   // one, between start_sum() and finish_sum()
  c10::intrusive_ptr<c10d::Work> work_;
};

comms::BackendPtr TiedParameters::group_of(const std::string& name, const std::vector<int>& ranks) {
  std::vector<int> members;
  for (const int rank : ranks) {
    if (std::ranges::find(members, rank) == members.end()) members.push_back(rank);
  }
  if (members.size() == 1) return nullptr;
  comms::BackendPtr& group = groups_[members];
  if (!group) group = world_.make_group("tied." + name, members);
  return group;
}

void TiedParameters::tie(const std::string& name, const std::vector<int>& ranks,
                         const std::vector<at::Tensor>& copies) {
  const auto expected = static_cast<size_t>(std::ranges::count(ranks, world_.rank()));
  if (expected == 0 || copies.size() != expected) {
    throw std::invalid_argument(c10::str("tied parameter `", name, "`: rank ", world_.rank(),
                                         " has ", expected, " of the copies, got ", copies.size()));
  }
  const comms::BackendPtr group = group_of(name, ranks);
  const auto tie = std::make_shared<Tie>(distinct(copies), ranks[0] == world_.rank(), group);
  tie->compare(name);
  tie->copy_first_value();
  ties_.push_back(tie);
  const std::vector<bool> is_distinct = are_distinct(ranks, copies, world_.rank(), group.get());
  const auto replicas = static_cast<int>(std::ranges::count(is_distinct, true));
  const layout::MeshLayout mesh({{"tied", replicas}});
  auto copy = copies.begin();
  int replica = 0;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const bool is_mine = ranks[i] == world_.rank();
    if (is_distinct[i]) {
      if (is_mine) {
        const layout::Layout layout(mesh, {layout::TensorPlacement::replicate()},
                                    copy->sizes().vec());
        distribute(*copy, {{layout, replica}, group.get(), tie});
      }
      ++replica;
    }
    if (is_mine) ++copy;
  }
}

void TiedParameters::step_begins() {
  for (const auto& tie : ties_) tie->step_begins();
}

void TiedParameters::add_gradients() {
  for (const auto& tie : ties_) tie->start_sum();
  for (const auto& tie : ties_) tie->finish_sum();
}

}  // namespace pipewright::modules
