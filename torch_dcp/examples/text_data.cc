#include "torch_dcp/examples/text_data.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randperm.h>

#include <array>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "torch_dcp/model_state/random_state.h"

namespace dcp::examples {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.good() && !file.eof()) throw std::runtime_error("cannot read the text '" + path + "'");
  return text;
}

}  // namespace

TextData::TextData(const std::string& path, std::int64_t context) : context_(context) {
  const std::string text = read_file(path);
  const auto count = static_cast<std::int64_t>(text.size());
  if (count <= context) {
    throw std::runtime_error("the text '" + path + "' has " + std::to_string(count) + " characters, fewer than " +
                             std::to_string(context + 1));
  }
  std::array<std::int64_t, 256> numbers{};
  for (const char c : text) numbers[static_cast<unsigned char>(c)] = 1;
  for (std::int64_t& number : numbers) number = number == 0 ? -1 : vocabulary_size_++;
  encoded_ = at::empty({count}, at::kLong);
  auto* to = encoded_.mutable_data_ptr<std::int64_t>();
  for (const char c : text) *to++ = numbers[static_cast<unsigned char>(c)];
}

at::Tensor TextData::window(std::int64_t index) const { return encoded_.narrow(0, index * context_, context_ + 1); }

DataOrder::DataOrder(std::int64_t window_count, std::uint64_t seed)
    : window_count_(window_count), generator_(at::detail::createCPUGenerator(seed)) {
  shuffle();
}

std::vector<std::int64_t> DataOrder::next(std::int64_t count) {
  std::vector<std::int64_t> windows;
  while (static_cast<std::int64_t>(windows.size()) < count) {
    if (position_ == window_count_) {
      shuffle();
      position_ = 0;
      ++epoch_;
    }
    windows.push_back(order_.const_data_ptr<std::int64_t>()[position_++]);
  }
  return windows;
}

Dict DataOrder::state() const {
  return {
      {"windows", window_count_}, {"epoch", epoch_}, {"position", position_}, {"generator", generator_before_.clone()}};
}

void DataOrder::restore(const Dict& state) {
  const std::int64_t windows = state.at("windows").as_int();
  const std::int64_t position = state.at("position").as_int();
  if (windows != window_count_ || position < 0 || position > windows) {
    throw std::runtime_error("the checkpoint is at window " + std::to_string(position) + " of " +
                             std::to_string(windows) + ", and the text has " + std::to_string(window_count_) +
                             ": it is of another text or context");
  }
  set_random_state(state.at("generator").as_tensor(), generator_);
  shuffle();
  epoch_ = state.at("epoch").as_int();
  position_ = position;
}

void DataOrder::shuffle() {
  generator_before_ = get_random_state(generator_);
  order_ = at::randperm(window_count_, generator_, at::kLong);
}

}  // namespace dcp::examples
