#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "torch_dcp/base/export.h"

namespace dcp {

/// How the integers of a quantized tensor stand for numbers: `(integer - zero point) * scale`.
struct Quantizer {
  double scale = 1;             ///< of the whole tensor; without meaning if `scales` is there
  std::int64_t zero_point = 0;  ///< likewise
  at::Tensor scales;            ///< [size of dimension `axis`], on the CPU; undefined if there is one for all
  at::Tensor zero_points;       ///< likewise; integers, or floating-point numbers for the scheme with those
  std::int64_t axis = 0;

  bool is_per_channel() const { return scales.defined(); }
};

/// Whether tensors of the dtype are quantized with one integer in each element (qint8, quint8, qint32). The packed
/// ones (quint4x2, quint2x4) have no form in a checkpoint.
DCP_API bool is_quantized_dtype(at::ScalarType dtype);

/// The scheme by which a tensor of a quantized dtype is quantized, such as "per_tensor_affine"; "none" for one that has
/// no quantizer, as `at::empty` makes it.
DCP_API std::string quantization_scheme(const at::Tensor& quantized);

/// \throws dcp::Error kUnsupported for a scheme other than affine, per tensor or per channel; kInvalidArgument for a
///         tensor that has no quantizer, as `at::empty` of a quantized dtype makes it.
DCP_API Quantizer quantizer_of(const at::Tensor& quantized);

/// Gives the tensor another quantizer; its integers stay. Only this handle's tensor changes, not its views.
///
/// \throws dcp::Error kInvalidArgument if `scales` or `zero_points` do not fit the tensor.
DCP_API void set_quantizer(const at::Tensor& quantized, const Quantizer& quantizer);

/// The integers of a quantized tensor as a tensor of theirs (qint8 as int8), on the same memory.
DCP_API at::Tensor integers_of(const at::Tensor& quantized);

}  // namespace dcp
