#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <random>

#include "torch_dcp/storage/save_id_internal.h"

namespace dcp {
namespace {

constexpr std::size_t kMaxIdLength = 64;

}  // namespace

std::string make_save_id() {
  // The system's generator: the training's own generators are part of its state and stay untouched.
  std::random_device random;
  std::array<std::uint32_t, 4> words{};
  for (std::uint32_t& word : words) word = random();
  words[1] = (words[1] & 0xffff0fffu) | 0x00004000u;  // version 4
  words[2] = (words[2] & 0x3fffffffu) | 0x80000000u;  // RFC 4122 variant
  std::array<char, 37> text{};
  std::snprintf(text.data(), text.size(), "%08x-%04x-%04x-%04x-%04x%08x", words[0], words[1] >> 16, words[1] & 0xffffu,
                words[2] >> 16, words[2] & 0xffffu, words[3]);
  return text.data();
}

bool is_plain_id(std::string_view id) {
  return !id.empty() && id.size() <= kMaxIdLength &&
         std::all_of(id.begin(), id.end(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '-'; });
}

}  // namespace dcp
