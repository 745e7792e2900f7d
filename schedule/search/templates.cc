#include "pipewright/schedule/search/templates.h"

#include <algorithm>

namespace pipewright::schedule::search {
namespace {

constexpr int kOne = Template::kOne;

int fixed(double number) { return static_cast<int>(number * kOne + (number < 0 ? -0.5 : 0.5)); }

// From 0 to `most`, in units of 1/kOne.
int fraction(int most, Random* random) { return random->between(0, most); }

void choose_partners(const Problem& problem, Random* random, Template* numbers) {
  if (problem.overlap == 0 || random->one_in(4)) return;
  numbers->partner_patience = random->one_in(3) ? 0 : fraction(kOne * 3 / 2, random);
  numbers->whole_partners = random->one_in(2);
}

int random_lag(Random* random) {
  const int kind = random->below(3);
  return kind == 0 ? 0 : kind == 1 ? Template::kNever : fraction(kOne, random);
}

}  // namespace

Template random_template(const Problem& problem, Random* random) {
  const int per_rank = stages_per_rank(problem), ranks = problem.num_ranks();
  Template numbers;
  for (int pass = 0; pass < 2 * per_rank; ++pass)
    numbers.pass_delay.push_back(random->one_in(3) ? 0 : random->below(9) * kOne / 2);
  for (int turn = 0; turn + 1 < 2 * per_rank; ++turn)
    numbers.turn_delay.push_back(random->one_in(2) ? 0 : random->below(13) * kOne / 2);
  if (random->one_in(3)) numbers.period += fraction(kOne / 10, random);
  numbers.weight_lag = random_lag(random);
  if (random->one_in(2)) numbers.patience = fraction(kOne * 6 / 5, random);
  if (random->one_in(2)) numbers.overrun = fraction(kOne, random);
  numbers.reserves = random->one_in(2);
  if (random->one_in(2)) {
    if (random->one_in(3)) numbers.reserve_base += fraction(kOne * ranks, random);
    numbers.reserve_slope =
        random->below(3) * (random->one_in(2) ? kOne / 2 : fraction(kOne, random));
  }
  if (per_rank == 1 && !random->one_in(3)) {
    numbers.cap_slope = kOne * 4 / 5 + fraction(2 * kOne, random);
    numbers.cap_offset = kOne * random->between(-1, 1);
  }
  if (random->one_in(2)) {
    numbers.group = random->between(2, 4);
    numbers.bunch = fraction(kOne, random);
  }
  choose_partners(problem, random, &numbers);
  return numbers;
}

Template mutated(const Problem& problem, Template numbers, Random* random) {
  // A change of up to `most` in either direction.
  const auto vary = [&](int* number, int most, int least) {
    *number = std::max(least, *number + random->between(-most, most));
  };
  const int changes = random->between(1, 3);
  for (int change = 0; change < changes; ++change) {
    switch (random->below(10)) {
      case 0:
      case 1:
        vary(&numbers.pass_delay[random->index(numbers.pass_delay.size())], kOne, 0);
        break;
      case 2:
        vary(&numbers.turn_delay[random->index(numbers.turn_delay.size())], 2 * kOne, 0);
        break;
      case 3:
        numbers.patience = fraction(kOne * 6 / 5, random);
        break;
      case 4:
        numbers.overrun = fraction(kOne, random);
        break;
      case 5:
        numbers.weight_lag = random_lag(random);
        break;
      case 6:
        numbers.period = kOne + fraction(kOne / 20, random);
        if (random->one_in(2)) numbers.reserves = !numbers.reserves;
        break;
      case 7:
        vary(&numbers.reserve_base, kOne * 3 / 2, kOne);
        break;
      case 8:
        if (random->one_in(2)) {
          vary(&numbers.bunch, kOne / 4, 0);
          numbers.bunch = std::min(numbers.bunch, kOne);
        } else {
          numbers.group = random->between(1, 4);
        }
        break;
      default:
        vary(&numbers.reserve_slope, kOne / 2, -kOne);
        if (stages_per_rank(problem) == 1 && numbers.cap_slope != Template::kNever)
          vary(&numbers.cap_slope, kOne / 5, kOne / 2);
        break;
    }
  }
  if (problem.overlap > 0 && random->one_in(4)) choose_partners(problem, random, &numbers);
  return numbers;
}

std::vector<Template> known_templates(const Problem& problem) {
  // Found on 8 ranks by random search: V, one stage per rank, two looped stages, and a wave of
  // four, each at four ratios of F, I and W and several memory limits.
  static constexpr int kRanks = 8;
  static const Template kFound[] = {
#include "pipewright/schedule/search/templates.inc"
  };
  const auto passes = 2 * static_cast<size_t>(stages_per_rank(problem));
  const int ranks = problem.num_ranks();
  std::vector<Template> all;
  const auto add = [&](const Template& numbers) {
    if (std::ranges::find(all, numbers) == all.end()) all.push_back(numbers);
  };
  // Compounds first: most of them pay. "I and F at once where both come soon".
  if (problem.overlap > 0) {
    for (const double slope : {1.0, 1.25, 1.6, 2.0, 3.0}) {
      for (const double patience : {0.0, 0.5, 1.0}) {
        for (const bool is_whole : {false, true}) {
          add({.pass_delay = std::vector<int>(passes),
               .turn_delay = std::vector<int>(passes - 1),
               .overrun = kOne / 2,
               .cap_slope = fixed(slope),
               .backward_first = true,
               .partner_patience = fixed(patience),
               .whole_partners = is_whole});
        }
      }
    }
  }
  for (const Template& found : kFound) {
    if (found.pass_delay.size() != passes) continue;
    add(found);
    // What counts ranks or microbatches in flight, in proportion to the ranks.
    Template scaled = found;
    scaled.reserve_base = std::max(kOne, found.reserve_base * ranks / kRanks);
    add(scaled);
    for (int& delay : scaled.turn_delay) delay = delay * ranks / kRanks;
    add(scaled);
  }
  // "F while fewer than slope * (stages left) + offset microbatches are in flight, otherwise I; W
  // fills": ZB-H1 has slope 1, ZB-H2 slope 2.
  for (const double slope : {1.0, 2.0, 1.5, 1.25, 1.75, 2.5, 3.0}) {
    for (const double offset : {0, 1, -1, 2}) {
      for (const double overrun : {0.0, 0.5, 1.0, 0.25, 0.75}) {
        // Several stages per rank are better served by targets.
        if (passes > 2 && (offset != 0 || overrun > 0.5)) continue;
        add({.pass_delay = std::vector<int>(passes),
             .turn_delay = std::vector<int>(passes - 1),
             .overrun = fixed(overrun),
             .cap_slope = fixed(slope),
             .cap_offset = fixed(offset),
             .backward_first = true});
      }
    }
  }
  return all;
}

}  // namespace pipewright::schedule::search
