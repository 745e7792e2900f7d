// Checks ROWS.md: no test of PyTorch is missing, and the tests of ours that it names exist.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// C++ without comments and with single spaces.
std::string code_of(const std::string& text) {
  const std::string code = std::regex_replace(text, std::regex("//[^\n]*"), "");
  return std::regex_replace(code, std::regex("\\s+"), " ");
}

// Whether `code` has the test, with a body that does something.
bool has_test(const std::string& code, const std::string& suite, const std::string& name) {
  for (const char* macro : {"TEST(", "TEST_P(", "TEST_F("}) {
    const std::string head = macro + suite + ", " + name + ") { ";
    const size_t found = code.find(head);
    if (found != std::string::npos && code[found + head.size()] != '}') return true;
  }
  return false;
}

TEST(Rows, SeeCodeAlone) {
  const std::string code = code_of(
      "// TEST(A, commented) { run(); }\nTEST(A, empty) {}\nTEST(A, blank) { // a run()\n}\n"
      "TEST_P(A,\n       there) {\n  run();\n}\n");
  EXPECT_FALSE(has_test(code, "A", "commented"));
  EXPECT_FALSE(has_test(code, "A", "empty"));
  EXPECT_FALSE(has_test(code, "A", "blank"));
  EXPECT_TRUE(has_test(code, "A", "there"));
}

struct Row {
  std::string section, test, status, ours, remark;
};

std::vector<Row> rows_of(const std::string& text) {
  std::vector<Row> rows;
  std::string section;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("## ")) section = line.substr(3);
    const std::regex row(R"(\| (.*?) \| (\w\S*) \|(.*?)\|(.*?)\|)");
    std::smatch cells;
    if (std::regex_match(line, cells, row))
      rows.push_back({section, cells[1], cells[2], cells[3], cells[4]});
  }
  return rows;
}

// The names of the tests in PyTorch's files, by hand.
const std::map<std::string, std::set<std::string>> kTests = {
    {"test_composability.py",
     {"test_pp_ddp", "test_pp_fsdp", "test_pp_fsdp_unshard_reshard_runtime"}},
    {"test_fully_shard_training.py",
     {"test_root_move_forward_input_to_device",
      "test_param_registration_after_forward",
      "test_param_registration_after_backward",
      "test_to_float64_after_init",
      "test_train_parity_single_group_shard_dim0",
      "test_train_parity_single_group_shard_largest_dim",
      "test_train_parity_multi_group",
      "test_train_parity_multi_group_cpu_offload_eager",
      "test_train_parity_multi_group_unshard_async_op",
      "test_non_root_forward_backward",
      "test_multi_forward_module",
      "test_explicit_prefetching",
      "test_post_optim_event",
      "test_train_parity_with_activation_checkpointing",
      "test_train_parity_shard_placement_fn_shard_largest_dim",
      "test_shard_placement_fn_contiguous_params_grads",
      "test_train_parity_with_shared_params",
      "test_gradient_accumulation",
      "test_1f1b_microbatching",
      "test_2d_mlp_with_nd_mesh",
      "test_3d_mlp_with_nd_mesh",
      "test_train_parity_hsdp",
      "test_register_fsdp_forward_method",
      "test_share_comm_context",
      "test_train_parity_single_worldsize1"}},
    {"test_replicate_training.py",
     {"test_root_move_forward_input_to_device", "test_param_registration_after_forward",
      "test_param_registration_after_backward", "test_to_float64_after_init",
      "test_train_parity_single_group", "test_train_parity_multi_groups",
      "test_train_parity_multi_group_cpu_offload_eager", "test_non_root_forward_backward",
      "test_multi_forward_module", "test_explicit_prefetching", "test_post_optim_event",
      "test_train_parity_with_activation_checkpointing", "test_train_parity_with_shared_params",
      "test_gradient_accumulation", "test_1f1b_microbatching", "test_register_fsdp_forward_method",
      "test_replicate_tp"}},
    {"test_fsdp_backward_prefetch.py", {"test_backward_prefetch"}}};

TEST(Rows, HaveEveryTestOnce) {
  std::map<std::string, std::multiset<std::string>> found;
  for (const Row& row : rows_of(text_of("tests/fsdp/ROWS.md"))) found[row.section].insert(row.test);
  size_t count = 0;
  for (const auto& [file, tests] : kTests) {
    EXPECT_EQ(found[file], std::multiset<std::string>(tests.begin(), tests.end())) << file;
    count += tests.size();
  }
  EXPECT_EQ(count, 46u);
}

TEST(Rows, NameTestsThatExist) {
  std::map<std::string, std::string> sources;
  for (const Row& row : rows_of(text_of("tests/fsdp/ROWS.md"))) {
    const bool is_there = row.status == "yes" || row.status == "half";
    EXPECT_TRUE(is_there || row.status == "no" || row.status == "n/a") << row.test;
    EXPECT_EQ(row.ours.find_first_not_of(' ') != std::string::npos, is_there) << row.test;
    if (row.status != "yes") {
      EXPECT_GT(row.remark.size(), 3u) << row.test << ": what is not there?";
    }
    std::istringstream words(row.ours);
    std::string path;
    for (std::string word; words >> word;) {
      if (word.ends_with(",")) word.pop_back();
      if (word == "FS") word = "tests/fsdp/fully_shard_test.cc";
      if (word == "RT") word = "tests/ddp/replicate_training_test.cc";
      if (word.ends_with(".cc")) {
        path = word;
        continue;
      }
      if (!sources.contains(path)) sources[path] = code_of(text_of(path));
      const size_t dot = word.find('.');
      ASSERT_NE(dot, std::string::npos) << row.test << ": " << word;
      EXPECT_TRUE(has_test(sources[path], word.substr(0, dot), word.substr(dot + 1)))
          << row.test << ": no " << word;
    }
  }
}

}  // namespace
