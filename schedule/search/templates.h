#ifndef PIPEWRIGHT_SCHEDULE_SEARCH_TEMPLATES_H_
#define PIPEWRIGHT_SCHEDULE_SEARCH_TEMPLATES_H_

#include <cstddef>
#include <span>
#include <vector>

#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/search/dispatcher.h"
#include "pipewright/schedule/search/random.h"

namespace pipewright::schedule::search {

// Templates that made good schedules for many costs, memory limits and sizes, adapted to this
// problem's number of ranks: what to try first.
std::vector<Template> known_templates(const Problem& problem);

// A random template for this problem.
Template random_template(const Problem& problem, Random* random);

// The template with one to three numbers changed.
Template mutated(const Problem& problem, Template numbers, Random* random);

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_TEMPLATES_H_
