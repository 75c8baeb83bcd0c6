#include "torch_dcp/tensor/dtype.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include <cmath>
#include <set>

#include "test/support/expect_error.h"

namespace dcp {
namespace {

using test::expect_error;

struct Known {
  const char* name;
  const char* storage;  ///< null if untyped
  std::int64_t bytes;
  std::int64_t swap_unit;
};

/// Everything that torch.distributed.checkpoint 2.14.1 can save.
const Known kKnown[] = {
    {"float64", "DoubleStorage", 8, 8},
    {"float32", "FloatStorage", 4, 4},
    {"float16", "HalfStorage", 2, 2},
    {"bfloat16", "BFloat16Storage", 2, 2},
    {"int8", "CharStorage", 1, 1},
    {"int16", "ShortStorage", 2, 2},
    {"int32", "IntStorage", 4, 4},
    {"int64", "LongStorage", 8, 8},
    {"uint8", "ByteStorage", 1, 1},
    {"bool", "BoolStorage", 1, 1},
    {"complex64", "ComplexFloatStorage", 8, 4},
    {"complex128", "ComplexDoubleStorage", 16, 8},
    {"qint8", "QInt8Storage", 1, 1},
    {"quint8", "QUInt8Storage", 1, 1},
    {"qint32", "QInt32Storage", 4, 4},
    {"uint16", nullptr, 2, 2},
    {"uint32", nullptr, 4, 4},
    {"uint64", nullptr, 8, 8},
    {"complex32", nullptr, 4, 2},
    {"bcomplex32", nullptr, 4, 2},
    {"float8_e4m3fn", nullptr, 1, 1},
    {"float8_e4m3fnuz", nullptr, 1, 1},
    {"float8_e5m2", nullptr, 1, 1},
    {"float8_e5m2fnuz", nullptr, 1, 1},
    {"float8_e8m0fnu", nullptr, 1, 1},
    {"float4_e2m1fn_x2", nullptr, 1, 1},
};

const char* const kNeverSaved[] = {"quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16",
                                   "uint1",    "uint2",    "uint3",   "uint4",   "uint5",   "uint6", "uint7",
                                   "int1",     "int2",     "int3",    "int4",    "int5",    "int6",  "int7"};

constexpr bool kHasAll = TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 14);

/// Known names, of which an older LibTorch may lack a few.
std::vector<ScalarType> dtypes(std::vector<std::string> names) {
  std::vector<ScalarType> found;
  for (const std::string& name : names) {
    const auto dtype = dtype_from_name(name);
    EXPECT_TRUE(dtype || !kHasAll) << name;
    if (dtype) found.push_back(*dtype);
  }
  return found;
}

TEST(Dtype, HasNameSizeAndStorage) {
  std::set<ScalarType> seen;
  for (const Known& known : kKnown) {
    for (ScalarType dtype : dtypes({known.name})) {
      seen.insert(dtype);
      EXPECT_EQ(dtype_name(dtype), known.name);
      EXPECT_EQ(element_bytes(dtype), known.bytes) << known.name;
      EXPECT_EQ(swap_unit_bytes(dtype), known.swap_unit) << known.name;
      const StorageName storage = storage_name(dtype);
      EXPECT_EQ(storage.is_untyped, known.storage == nullptr) << known.name;
      EXPECT_EQ(storage.module, known.storage ? "torch" : "torch.storage") << known.name;
      EXPECT_EQ(storage.name, known.storage ? known.storage : "UntypedStorage") << known.name;
      if (!known.storage) continue;
      EXPECT_EQ(dtype_from_storage_name(known.storage), dtype);
    }
  }
  EXPECT_TRUE(!kHasAll || seen.size() == std::size(kKnown)) << "two names mean one dtype";
  EXPECT_EQ(dtype_from_name("float32"), ScalarType::Float);
  EXPECT_EQ(dtype_from_name("int64"), ScalarType::Long);
}

TEST(Dtype, SpellsWhatItCannotSave) {
  for (const char* name : kNeverSaved) {
    for (ScalarType dtype : dtypes({name})) {
      EXPECT_EQ(dtype_name(dtype), name);
      expect_error(ErrorKind::kUnsupported, name, [&] { storage_name(dtype); });
    }
  }
}

TEST(Dtype, CoversEveryDtypeOfThisLibTorch) {
  for (int i = 0; i < static_cast<int>(ScalarType::NumOptions); ++i) {
    const auto dtype = static_cast<ScalarType>(i);
    if (dtype == ScalarType::Undefined) continue;
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype) << c10::toString(dtype);
  }
}

TEST(Dtype, HasAStandInForThoseThatItMayLack) {
  const std::pair<const char*, std::int64_t> newer[] = {
      {"float8_e8m0fnu", 1}, {"float4_e2m1fn_x2", 1}, {"bcomplex32", 4}};
  for (const auto& [name, bytes] : newer) {
    const auto dtype = named_dtype(name);
    ASSERT_TRUE(dtype) << name;
    EXPECT_EQ(dtype_name(*dtype), name);
    EXPECT_EQ(element_bytes(dtype->dtype), bytes) << name;
    EXPECT_EQ(dtype->newer == NewerDtype::kNone, dtype_from_name(name).has_value()) << name;
  }
  EXPECT_EQ(dtype_name(NamedDtype{ScalarType::UInt32, NewerDtype::kBComplex32}), "bcomplex32");
  EXPECT_EQ(named_dtype("float32")->dtype, at::kFloat);
  EXPECT_FALSE(named_dtype("float33"));
}

TEST(Dtype, SaysNothingForUnknownNames) {
  EXPECT_EQ(dtype_from_name("float33"), std::nullopt);
  EXPECT_EQ(dtype_from_name(""), std::nullopt);
  EXPECT_EQ(dtype_from_name("torch.float32"), std::nullopt);
  EXPECT_EQ(dtype_from_storage_name(""), std::nullopt);
  EXPECT_EQ(dtype_from_storage_name("UntypedStorage"), std::nullopt);
  EXPECT_EQ(dtype_from_storage_name("float32"), std::nullopt);
  expect_error(ErrorKind::kUnsupported, "Undefined", [] { dtype_name(ScalarType::Undefined); });
  expect_error(ErrorKind::kUnsupported, "Undefined", [] { element_bytes(ScalarType::Undefined); });
}

/// Every bit pattern of a dtype of 8 or 16 bits; both values of bool.
at::Tensor all_values(ScalarType dtype) {
  if (dtype == at::kBool) return at::arange(2, at::kByte).to(at::kBool);
  if (element_bytes(dtype) == 1) return at::arange(256, at::kInt).to(at::kByte).view(dtype);
  return at::arange(65536, at::kInt).to(at::kShort).view(dtype);
}

/// The numbers as doubles, exactly; a complex tensor must be real but for NaNs.
at::Tensor as_doubles(const at::Tensor& tensor) {
  if (!tensor.is_complex()) return tensor.to(at::kDouble);
  const at::Tensor parts = at::view_as_real(tensor.to(at::kComplexDouble));
  EXPECT_TRUE(parts.select(1, 1).eq(0).logical_or(parts.select(1, 0).isnan()).all().item<bool>());
  return parts.select(1, 0).contiguous();
}

bool is_same_number(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b && std::signbit(a) == std::signbit(b);
}

bool every_value_survives(ScalarType from, ScalarType to) {
  const at::Tensor values = all_values(from);
  const at::Tensor before = as_doubles(values);
  const at::Tensor after = as_doubles(values.to(to));
  const double* left = before.const_data_ptr<double>();
  const double* right = after.const_data_ptr<double>();
  for (std::int64_t i = 0; i < before.numel(); ++i) {
    if (!is_same_number(left[i], right[i])) return false;
  }
  return true;
}

TEST(Dtype, ConvertsSmallOnesWithoutLossExactlyIfEveryValueSurvives) {
  const auto small = dtypes({"bool", "uint8", "int8", "int16", "uint16", "float16", "bfloat16", "float8_e4m3fn",
                             "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"});
  auto targets = small;
  for (ScalarType dtype : dtypes({"int32", "int64", "uint32", "uint64", "float32", "float64", "complex32", "bcomplex32",
                                  "complex64", "complex128"})) {
    targets.push_back(dtype);
  }
  for (ScalarType from : small) {
    for (ScalarType to : targets) {
      EXPECT_EQ(converts_without_loss(from, to), every_value_survives(from, to))
          << dtype_name(from) << " to " << dtype_name(to);
    }
  }
}

TEST(Dtype, ConvertsLargeOnesByRangeAndPrecision) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> lossless = {
      {"int32", {"int64", "float64", "complex128"}},
      {"uint32", {"int64", "uint64", "float64", "complex128"}},
      {"int64", {}},
      {"uint64", {}},
      {"float32", {"float64", "complex64", "complex128"}},
      {"float64", {"complex128"}},
      {"complex32", {"complex64", "complex128"}},
      {"bcomplex32", {"complex64", "complex128"}},
      {"complex64", {"complex128"}},
      {"complex128", {}},
  };
  for (const auto& [from_name, to_names] : lossless) {
    for (ScalarType from : dtypes({from_name})) {
      const std::set<std::string> expected(to_names.begin(), to_names.end());
      for (const Known& to : kKnown) {
        for (ScalarType to_dtype : dtypes({to.name})) {
          EXPECT_EQ(converts_without_loss(from, to_dtype), expected.contains(to.name) || from_name == to.name)
              << from_name << " to " << to.name;
        }
      }
    }
  }
}

TEST(Dtype, ConvertsQuantizedAndPackedOnesOnlyToThemselves) {
  std::vector<ScalarType> closed = dtypes({"qint8", "quint8", "qint32", "float4_e2m1fn_x2"});
  for (const char* name : kNeverSaved) {
    for (ScalarType dtype : dtypes({name})) closed.push_back(dtype);
  }
  std::vector<ScalarType> all = closed;
  for (const Known& known : kKnown) {
    for (ScalarType dtype : dtypes({known.name})) all.push_back(dtype);
  }
  for (ScalarType one : closed) {
    for (ScalarType other : all) {
      EXPECT_EQ(converts_without_loss(one, other), one == other) << dtype_name(one) << " to " << dtype_name(other);
      EXPECT_EQ(converts_without_loss(other, one), one == other) << dtype_name(other) << " to " << dtype_name(one);
    }
  }
}

}  // namespace
}  // namespace dcp
