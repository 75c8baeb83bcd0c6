#include "torch_dcp/state_dict/tensor_fit.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "torch_dcp/tensor/dtype.h"
#include "torch_dcp/tensor/quantized.h"

namespace dcp {
namespace {

/// (stride, size), as a tensor's memory is walked.
using Steps = std::vector<std::pair<std::int64_t, std::int64_t>>;

/// Marks each element's place. \pre No stride is 0.
bool meets_itself(const Steps& steps, std::int64_t place_count) {
  std::vector<bool> taken(static_cast<std::size_t>(place_count));
  Steps at = steps;  // (what it adds to the place, position)
  for (auto& [stride, position] : at) stride = position = 0;
  std::int64_t place = 0;
  while (true) {
    if (taken[static_cast<std::size_t>(place)]) return true;
    taken[static_cast<std::size_t>(place)] = true;
    std::size_t d = 0;
    for (; d < steps.size(); ++d) {
      const auto& [stride, size] = steps[d];
      place += stride;
      if (++at[d].second < size) break;
      place -= stride * size;
      at[d].second = 0;
    }
    if (d == steps.size()) return false;
  }
}

bool overlaps_itself(const at::Tensor& tensor) {
  if (tensor.numel() < 2 || tensor.is_non_overlapping_and_dense()) return false;
  Steps steps;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1) steps.emplace_back(tensor.stride(d), tensor.size(d));
  }
  std::sort(steps.begin(), steps.end());
  if (steps.front().first == 0) return true;
  bool is_nested = true;  // Each dimension steps over all that the smaller ones reach.
  std::int64_t reach = 0;
  for (const auto& [stride, size] : steps) {
    is_nested = is_nested && stride > reach;
    reach += stride * (size - 1);
  }
  if (is_nested) return false;
  return tensor.numel() > reach + 1 || meets_itself(steps, reach + 1);
}

/// `copy_` knows quantized tensors of one dtype and scheme alone.
std::string why_not_quantized_alike(const at::Tensor& given, const at::Tensor& target) {
  if (!given.is_quantized() && !target.is_quantized()) return "";
  if (given.scalar_type() != target.scalar_type()) {
    return c10::str("a tensor of ", dtype_name(given.scalar_type()), " cannot be copied into one of ",
                    dtype_name(target.scalar_type()));
  }
  const std::string from = quantization_scheme(given);
  const std::string to = quantization_scheme(target);
  if (from == to && from != "none") return "";
  return "a tensor with quantizer " + from + " cannot be copied into one with quantizer " + to;
}

}  // namespace

bool check_fits(const std::string& key, const at::Tensor& given, c10::IntArrayRef sizes, c10::ScalarType dtype,
                DtypePolicy policy, FaultList& faults, LoadReport& report) {
  if (given.sizes() != sizes) {
    faults.add(ErrorKind::kShape, key,
               c10::str("the given tensor has shape ", given.sizes(), ", the current one ", sizes));
    return false;
  }
  const c10::ScalarType from = given.scalar_type();
  if (from == dtype) return true;
  if (!may_convert(from, dtype, policy)) {
    faults.add(ErrorKind::kType, key,
               c10::str("the given tensor is ", dtype_name(from), ", the current one ", dtype_name(dtype),
                        ", and the dtype policy does not allow this conversion"));
    return false;
  }
  report.converted.push_back({key, dtype_name(from), dtype_name(dtype)});
  return true;
}

bool check_fits(const std::string& key, const at::Tensor& given, const at::Tensor& target, DtypePolicy policy,
                FaultList& faults, LoadReport& report) {
  if (!check_fits(key, given, target.sizes(), target.scalar_type(), policy, faults, report)) return false;
  std::string why = why_not_writable(target);
  if (!why.empty()) why += " cannot be written";
  if (why.empty()) why = why_not_quantized_alike(given, target);
  if (!why.empty()) faults.add(ErrorKind::kUnsupported, key, why);
  return why.empty();
}

std::string why_not_writable(const at::Tensor& target) {
  const bool has_elements = target.layout() == at::kStrided && !target.is_nested() && !target.is_meta();
  return has_elements && overlaps_itself(target) ? "a tensor that overlaps itself" : "";
}

}  // namespace dcp
