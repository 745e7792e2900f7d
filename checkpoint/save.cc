#include "pipewright/checkpoint/save.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <utility>

#include "pipewright/checkpoint/durable_file.h"
#include "pipewright/checkpoint/folder.h"
#include "pipewright/checkpoint/manifest.h"
#include "pipewright/checkpoint/safetensors_file.h"
#include "pipewright/layout/boxes.h"

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

// The protocol. Each line ends with an exchange, which is a barrier and tells of errors:
//
//   rank 0      step-N.tmp is created; the id of the save goes to all
//   all ranks   step-N.tmp/shard-*.safetensors is written and made durable; rank 0 learns of it
//   rank 0      the manifest is written last, step-N.tmp becomes step-N, then `latest` names it,
//               then older checkpoints are removed
//
// Invariant: a folder called step-N is whole and durable. It gets its name by one rename, after
// everything in it is on the disk, and loses it by one rename, before anything in it is removed.

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

void remove_folder(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) throw FileError("remove", folder.native(), error.value());
}

std::string random_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

// Gives `from` the name `to`. A folder that has it takes the other name instead, in one step.
void rename_or_exchange(const fs::path& from, const fs::path& to) {
  if (!fs::exists(to)) {
    rename_file(from, to);
  } else if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0) {
    throw FileError("replace", to.native(), errno);
  }
}

// Adds the tensors of one rank to those of the others; the boxes are checked later.
struct Collected {
  std::map<std::string, ManifestTensor> tensors;
  std::map<std::string, std::vector<Box>> boxes;

  void add(const Json& record) {
    for (const Json& part : record.at("parts")) {
      const ManifestTensor tensor{
          {part.at("name"), *parse_dtype(part.at("dtype").get<std::string>()), part.at("shape")},
          part.at("layout")};
      const auto [entry, is_new] = tensors.emplace(tensor.name, tensor);
      if (entry->second != tensor)
        throw std::invalid_argument(fmt::format(
            "tensor `{}`: expected one type, shape and layout on all ranks, got two", tensor.name));
      boxes[tensor.name].push_back({part.at("begin"), part.at("sizes")});
    }
  }

  void check_coverage() const {
    for (const auto& [name, tensor] : tensors) {
      const layout::Coverage coverage = layout::cover(tensor.shape, boxes.at(name));
      if (!coverage.gaps.empty())
        throw std::invalid_argument(
            fmt::format("tensor `{}`: no rank saves elements {}", name, text(coverage.gaps[0])));
      if (!coverage.overlaps.empty())
        throw std::invalid_argument(fmt::format("tensor `{}`: elements {} are saved twice", name,
                                                text(boxes.at(name)[coverage.overlaps[0].first])));
    }
  }
};

void check_part(const TensorPart& part) {
  if (!lies_in(part.box, part.shape))
    throw std::invalid_argument(fmt::format("tensor `{}`: expected a box in {}, got {}", part.name,
                                            text(layout::whole_box(part.shape)), text(part.box)));
  const auto bytes = bytes_of(part.dtype, part.box.sizes);
  if (bytes != part.data.size())
    throw std::invalid_argument(fmt::format("tensor `{}`: expected {} bytes of data, got {}",
                                            part.name, bytes.value_or(0), part.data.size()));
}

}  // namespace

Saver::Saver(SaverOptions options, Exchange exchange)
    : options_(std::move(options)), exchange_(std::move(exchange)) {
  if (options_.keep < 1) throw std::invalid_argument("keep: expected at least 1");
  agree(exchange_, [&]() -> std::string {
    if (options_.rank != 0) return "";
    lock_ = std::make_unique<SaveLock>(options_.folder);
    for (const fs::directory_entry& entry : fs::directory_iterator(options_.folder)) {
      const fs::path& path = entry.path();
      if (path.extension() == ".tmp" && step_of(path.stem())) remove_folder(path);
    }
    return "";
  });
}

fs::path Saver::temporary_folder(int64_t step) const {
  return options_.folder / (step_name(step) + ".tmp");
}

Saver::~Saver() = default;

fs::path Saver::save(const Snapshot& snapshot, std::exception_ptr error) {
  const bool is_first = options_.rank == 0;
  const fs::path temporary = temporary_folder(snapshot.step);
  try {
    const std::string save_id = agree(exchange_, [&]() -> std::string {
      if (error) std::rethrow_exception(error);
      if (!is_first) return "";
      remove_folder(temporary);
      std::error_code failed;
      fs::create_directory(temporary, failed);
      if (failed) throw FileError("create", temporary.native(), failed.value());
      return random_id();
    })[0];
    const std::vector<std::string> records =
        agree(exchange_, [&] { return write_shards(snapshot, save_id); });
    agree(exchange_, [&]() -> std::string {
      if (is_first) commit(snapshot, save_id, records);
      return "";
    });
  } catch (...) {
    std::error_code ignored;
    if (is_first) fs::remove_all(temporary, ignored);  // the first error is the one to report
    throw;
  }
  return options_.folder / step_name(snapshot.step);
}

std::string Saver::write_shards(const Snapshot& snapshot, const std::string& save_id) const {
  Json record = {{"parts", Json::array()}, {"files", Json::array()}, {"state", snapshot.state}};
  // A file has one part of a tensor, so the second part of each tensor is in a second file.
  std::vector<std::map<std::string, const TensorPart*>> files;
  std::map<std::string, size_t> parts_of;
  for (const TensorPart& part : snapshot.parts) {
    check_part(part);
    record["parts"].push_back({{"name", part.name},
                               {"dtype", name(part.dtype)},
                               {"shape", part.shape},
                               {"begin", part.box.begin},
                               {"sizes", part.box.sizes},
                               {"layout", part.layout}});
    const size_t index = parts_of[part.name]++;
    if (index == files.size()) files.emplace_back();
    files[index].emplace(part.name, &part);
  }
  const fs::path folder = temporary_folder(snapshot.step);
  for (size_t index = 0; index < files.size(); ++index) {
    const std::string file = fmt::format("shard-{:05}-model-{:05}-of-{:05}.safetensors",
                                         options_.rank + 1, index + 1, files.size());
    std::vector<TensorSpec> specs;
    SavedOffsets offsets;
    for (const auto& [name, part] : files[index]) {
      specs.push_back({name, part->dtype, part->box.sizes});
      offsets[name] = part->box.begin;
    }
    Metadata metadata = sharding_metadata(offsets);
    metadata[kSaveIdKey] = save_id;
    SafetensorsWriter writer(folder / file,
                             lay_out_safetensors(std::move(specs), std::move(metadata)));
    for (const StoredTensor& tensor : writer.header().tensors)
      writer.write(files[index].at(tensor.name)->data);
    writer.commit();
    record["files"].push_back({{"name", file}, {"size", writer.size()}, {"crc32", writer.crc32()}});
  }
  if (!files.empty()) sync_folder(folder);
  return record.dump();
}

void Saver::commit(const Snapshot& snapshot, const std::string& save_id,
                   const std::vector<std::string>& records) const {
  const fs::path temporary = temporary_folder(snapshot.step);
  const fs::path folder = options_.folder / step_name(snapshot.step);
  Manifest manifest;
  // All fields: one more does not compile before it is set here.
  auto& [step, id, schedule, program_digest, mesh, files, tensors, state] = manifest;
  step = snapshot.step;
  id = save_id;
  schedule = snapshot.schedule;
  program_digest = snapshot.program_digest;
  mesh = snapshot.mesh;
  Collected collected;
  for (const std::string& text : records) {
    const Json record = Json::parse(text);
    collected.add(record);
    for (const auto& [key, value] : record.at("state").items()) {
      const auto [entry, is_new] = state.emplace(key, value);
      if (entry->second != value.get<std::string>())
        throw std::invalid_argument(
            fmt::format("state `{}`: expected one value on all ranks, got two", key));
    }
    for (const Json& file : record.at("files")) {
      const ManifestFile added{file.at("name"), file.at("size"), file.at("crc32")};
      std::error_code error;
      const uint64_t size = fs::file_size(temporary / added.name, error);
      if (error || size != added.size)
        throw std::runtime_error(
            fmt::format("{}: expected {} bytes, got {}: do all ranks see the same folder?",
                        (temporary / added.name).native(), added.size,
                        error ? error.message() : std::to_string(size)));
      files.push_back(added);
    }
  }
  collected.check_coverage();
  for (auto& [name, tensor] : collected.tensors) tensors.push_back(std::move(tensor));

  write_durably(temporary / kManifestName, manifest_text(manifest));
  rename_or_exchange(temporary, folder);
  sync_folder(options_.folder);
  // From here on, the checkpoint is there: what follows only fails to name it, or to tidy up.
  write_durably(options_.folder / "latest", folder.filename().native() + "\n");
  remove_folder(temporary);  // the checkpoint of the same step that was replaced
  prune(snapshot.step);
}

void Saver::prune(int64_t step) const {
  std::vector<FolderEntry> entries = list_checkpoints(options_.folder);
  // Later steps were left by a run that went further before it was resumed at an earlier step.
  entries.erase(std::remove_if(entries.begin(), entries.end(),
                               [&](const FolderEntry& entry) { return entry.step > step; }),
                entries.end());
  const size_t keep = static_cast<size_t>(options_.keep);
  for (size_t index = 0; index + keep < entries.size(); ++index) {
    const fs::path removed = temporary_folder(entries[index].step);
    rename_file(entries[index].path, removed);
    sync_folder(options_.folder);
    remove_folder(removed);
  }
}

AsyncSaver::AsyncSaver(SaverOptions options, Exchange exchange)
    : saver_(std::move(options), std::move(exchange)) {}

void AsyncSaver::start(std::shared_ptr<const Snapshot> snapshot, std::function<void()> copy) {
  wait();
  std::promise<void> copied;
  copied_ = copied.get_future();
  saving_ =
      std::async(std::launch::async, [this, snapshot = std::move(snapshot), copy = std::move(copy),
                                      copied = std::move(copied)]() mutable {
        const std::shared_ptr<const Snapshot> saved = std::move(snapshot);
        std::exception_ptr error;
        try {
          if (copy) copy();
        } catch (...) {
          error = std::current_exception();
        }
        copied.set_value();
        copy = nullptr;  // it may own memory
        return saver_.save(*saved, error);
      });
}

void AsyncSaver::wait_copied() {
  if (copied_.valid()) copied_.get();
}

std::filesystem::path AsyncSaver::wait() {
  return saving_.valid() ? saving_.get() : std::filesystem::path();
}

}  // namespace pipewright::checkpoint
