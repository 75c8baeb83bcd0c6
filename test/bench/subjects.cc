#include "test/bench/subjects.h"

#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <torch/csrc/api/include/torch/serialize/archive.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>

#include "test/bench/timing.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/checkpoint/load.h"
#include "torch_dcp/checkpoint/save.h"
#include "torch_dcp/storage/filesystem_reader.h"
#include "torch_dcp/storage/filesystem_writer.h"

namespace dcp::bench {
namespace {

const std::string& name_of(const std::pair<Key, Value>& entry) { return std::get<std::string>(entry.first); }

}  // namespace

StateDict make_state(std::int64_t count, std::int64_t bytes_each, std::uint64_t seed) {
  StateDict state;
  std::mt19937_64 random(seed);
  for (std::int64_t i = 0; i < count; ++i) {
    char name[32];
    std::snprintf(name, sizeof(name), "t%05lld", static_cast<long long>(i));
    const at::Tensor tensor = at::empty({bytes_each / 4}, at::kFloat);
    auto* const elements = static_cast<float*>(tensor.mutable_data_ptr());
    for (std::int64_t k = 0; k < tensor.numel(); ++k) elements[k] = static_cast<float>(random() >> 40) * 0x1p-24f;
    state[std::string(name)] = tensor;
  }
  return state;
}

std::vector<ByteSpan> parts_of(const StateDict& state) {
  std::vector<ByteSpan> parts;
  for (const auto& entry : state) {
    const at::Tensor& tensor = entry.second.as_tensor();
    parts.emplace_back(static_cast<const std::uint8_t*>(tensor.const_data_ptr()), tensor.nbytes());
  }
  return parts;
}

std::vector<MutableByteSpan> mutable_parts_of(StateDict& state) {
  std::vector<MutableByteSpan> parts;
  for (const auto& entry : state) {
    const at::Tensor& tensor = entry.second.as_tensor();
    parts.emplace_back(static_cast<std::uint8_t*>(tensor.mutable_data_ptr()), tensor.nbytes());
  }
  return parts;
}

bool have_equal_bytes(const StateDict& a, const StateDict& b) {
  const std::vector<ByteSpan> x = parts_of(a);
  const std::vector<ByteSpan> y = parts_of(b);
  if (x.size() != y.size()) return false;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i].size() != y[i].size() || std::memcmp(x[i].data(), y[i].data(), x[i].size()) != 0) return false;
  }
  return true;
}

double save_ours(const StateDict& state, const std::string& folder, const SaveForm& form) {
  FileSystemWriterOptions options;
  options.thread_count = form.threads;
  options.sync_files = form.is_durable;
  options.checksums = form.checksums;
  return seconds_of([&] {
    FileSystemWriter writer(folder, options);
    save(state, writer);
  });
}

double load_ours(StateDict& state, const std::string& folder, bool checksums, std::size_t threads) {
  FileSystemReaderOptions options;
  options.thread_count = threads;
  options.verify_checksums = checksums;
  return seconds_of([&] {
    FileSystemReader reader(folder, options);
    load(state, reader);
  });
}

double save_libtorch(const StateDict& state, const std::string& file, bool is_durable) {
  return seconds_of([&] {
    std::filesystem::create_directories(std::filesystem::path(file).parent_path());
    torch::serialize::OutputArchive archive;
    for (const auto& entry : state) archive.write(name_of(entry), entry.second.as_tensor());
    archive.save_to(file);
    if (!is_durable) return;
    const int number = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    DCP_CHECK(number >= 0 && ::fsync(number) == 0, kIo, "cannot sync ", file);
    ::close(number);
  });
}

double load_libtorch(StateDict& state, const std::string& file) {
  return seconds_of([&] {
    torch::serialize::InputArchive archive;
    archive.load_from(file);
    for (const auto& entry : state) {
      at::Tensor tensor = entry.second.as_tensor();
      archive.read(name_of(entry), tensor);
    }
  });
}

}  // namespace dcp::bench
