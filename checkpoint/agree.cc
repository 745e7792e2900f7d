#include "pipewright/checkpoint/agree.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "pipewright/checkpoint/agreed_error.h"

namespace pipewright::checkpoint {

using Json = nlohmann::json;

std::vector<std::string> agree(const Exchange& exchange, const std::function<std::string()>& work) {
  Json mine = Json::object();
  try {
    mine["result"] = work();
  } catch (const std::exception& error) {
    mine = {{"error", error.what()}};
  }
  const std::vector<std::string> all =
      exchange(mine.dump(-1, ' ', false, Json::error_handler_t::replace));
  std::vector<std::string> results;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const Json theirs = Json::parse(all[rank]);
    if (theirs.contains("error"))
      throw AgreedError(fmt::format("rank {}: {}", rank, theirs["error"].get<std::string>()));
    results.push_back(theirs["result"]);
  }
  return results;
}

}  // namespace pipewright::checkpoint
