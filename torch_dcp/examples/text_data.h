#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "torch_dcp/state_dict/value.h"

namespace dcp::examples {

/// A text as numbers: each byte that occurs in it has one, in ascending order. Immutable.
class TextData {
 public:
  /// \param context  Characters that a model sees at once.
  /// \throws std::runtime_error if the file cannot be read, or has fewer than `context + 1` characters.
  TextData(const std::string& path, std::int64_t context);

  std::int64_t vocabulary_size() const { return vocabulary_size_; }
  std::int64_t character_count() const { return encoded_.numel(); }
  std::int64_t window_count() const { return (encoded_.numel() - 1) / context_; }
  std::int64_t context() const { return context_; }

  /// The `index`-th window: int64 [context + 1], of which the last character is also the first of the next window.
  at::Tensor window(std::int64_t index) const;

 private:
  std::int64_t context_;
  std::int64_t vocabulary_size_ = 0;
  at::Tensor encoded_;  ///< int64 [characters]
};

/// The order in which windows are visited: all of them once in a random order, then again in another one.
class DataOrder {
 public:
  DataOrder(std::int64_t window_count, std::uint64_t seed);

  /// The next `count` windows.
  std::vector<std::int64_t> next(std::int64_t count);

  /// Where it stands: the generator as it was before it drew the present order, and the place in that order. A copy.
  Dict state() const;
  /// \throws std::runtime_error if the state is of another number of windows.
  void restore(const Dict& state);

 private:
  void shuffle();

  std::int64_t window_count_;
  at::Generator generator_;
  at::Tensor generator_before_;  ///< its state when it drew `order_`
  at::Tensor order_;             ///< int64 [windows]
  std::int64_t epoch_ = 0;
  std::int64_t position_ = 0;
};

}  // namespace dcp::examples
