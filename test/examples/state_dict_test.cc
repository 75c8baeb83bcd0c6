// Runs the example on a checkpoint that Python wrote.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <string>

#include "torch_dcp/checkpoint/by_checkpoint_id.h"

namespace dcp::examples {
namespace {

namespace fs = std::filesystem;

std::string run(const std::string& arguments) {
  const std::string program =
      std::string(std::getenv("TEST_SRCDIR")) + "/" + std::getenv("TEST_WORKSPACE") + "/torch_dcp/examples/state_dict ";
  FILE* output = ::popen((program + arguments + " 2>&1").c_str(), "r");
  if (output == nullptr) throw std::runtime_error("cannot start a shell");
  std::string text;
  std::array<char, 4096> buffer{};
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), output)) {
    text.append(buffer.data(), count);
  }
  const int status = ::pclose(output);
  return text + "exit " + std::to_string(WIFEXITED(status) ? WEXITSTATUS(status) : -1) + "\n";
}

/// A checkpoint of the fixtures without the links that test data are.
std::string copy_of(const std::string& fixture) {
  const fs::path to = fs::path(std::getenv("TEST_TMPDIR")) / fixture;
  fs::create_directories(to);
  for (const auto& entry : fs::directory_iterator("test/golden/fixtures/" + fixture + "/ckpt")) {
    fs::copy_file(fs::canonical(entry.path()), to / entry.path().filename(), fs::copy_options::overwrite_existing);
  }
  return to.string();
}

TEST(StateDictExample, TakesTheSharedPartAndComesBackFromWhatChanged) {
  const std::string pretrained = copy_of("single_model_adam_nested");
  const std::string output = std::string(std::getenv("TEST_TMPDIR")) + "/fine_tuned";
  const std::string text = run("--pretrained " + pretrained + " --output " + output + " --steps 5");
  for (const char* wanted :
       {"not in the checkpoint: head.weight head.bias\n", "not in the model: scale body.2.weight\n",
        "saving 5 of 11 entries", "the same, bit for bit\nexit 0\n"}) {
    EXPECT_NE(text.find(wanted), std::string::npos) << wanted << "is not in\n" << text;
  }
  std::set<std::string> keys;
  for (const auto& entry : read_metadata(output).state_dict_metadata) {
    if (entry.first.starts_with("model.")) keys.insert(entry.first);
  }
  EXPECT_EQ(keys, (std::set<std::string>{"model.head.weight", "model.head.bias", "model.norm.running_mean",
                                         "model.norm.running_var", "model.norm.num_batches_tracked"}));
}

TEST(StateDictExample, SaysWhatIsWrongWithAnotherCheckpoint) {
  const std::string text = run("--pretrained " + std::string(std::getenv("TEST_TMPDIR")) + "/nowhere");
  EXPECT_NE(text.find("incomplete checkpoint"), std::string::npos) << text;
  EXPECT_NE(text.find("exit 1\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace dcp::examples
