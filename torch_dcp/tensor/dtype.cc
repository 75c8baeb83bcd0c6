#include "torch_dcp/tensor/dtype.h"

#include <limits>
#include <span>

#include "torch_dcp/base/error.h"

namespace dcp {
namespace {

// Newer dtypes are asked for by name, so that an older LibTorch compiles and answers Undefined.
#define DCP_MAYBE_DTYPE(name)                 \
  template <typename Type>                    \
  constexpr Type maybe_##name() {             \
    if constexpr (requires { Type::name; }) { \
      return Type::name;                      \
    } else {                                  \
      return Type::Undefined;                 \
    }                                         \
  }
DCP_MAYBE_DTYPE(Float8_e8m0fnu)
DCP_MAYBE_DTYPE(Float4_e2m1fn_x2)
DCP_MAYBE_DTYPE(BComplex32)
DCP_MAYBE_DTYPE(Int1)
DCP_MAYBE_DTYPE(Int2)
DCP_MAYBE_DTYPE(Int3)
DCP_MAYBE_DTYPE(Int4)
DCP_MAYBE_DTYPE(Int5)
DCP_MAYBE_DTYPE(Int6)
DCP_MAYBE_DTYPE(Int7)
#undef DCP_MAYBE_DTYPE

enum class Family : std::uint8_t {
  kInteger,  ///< bool too
  kFloat,
  kComplex,
  kOther,  ///< quantized, packed, raw bits: converts to nothing else
};

/// Which real numbers a dtype has; for a complex one, which its components have.
struct Numbers {
  Family family = Family::kOther;
  int bits = 0;          ///< significant bits, without a sign
  int lowest_bit = 0;    ///< exponent of the smallest positive number
  double largest = 0;    ///< largest finite number
  bool has_sign = true;  ///< numbers below zero
  bool has_zero = true;  ///< 0 is one of them
  bool has_minus_zero = false;
  bool has_infinity = false;
  bool has_nan = false;
};

constexpr Numbers integer(int bits, bool has_sign) {
  double largest = 1;
  for (int i = 0; i < bits; ++i) largest *= 2;
  return {Family::kInteger, bits, 0, largest, has_sign};
}

constexpr Numbers ieee(int bits, int lowest_bit, double largest) {
  return {Family::kFloat, bits, lowest_bit, largest, true, true, true, true, true};
}

/// No infinities.
constexpr Numbers finite(int bits, int lowest_bit, double largest, bool has_minus_zero) {
  return {Family::kFloat, bits, lowest_bit, largest, true, true, has_minus_zero, false, true};
}

constexpr Numbers complex_of(Numbers component) {
  component.family = Family::kComplex;
  return component;
}

constexpr Numbers kHalfNumbers = ieee(11, -24, 65504);
constexpr Numbers kBFloat16Numbers = ieee(8, -133, 0x1.FEp127);
constexpr Numbers kFloatNumbers = ieee(24, -149, std::numeric_limits<float>::max());
constexpr Numbers kDoubleNumbers = ieee(53, -1074, std::numeric_limits<double>::max());
/// Powers of two and NaN.
constexpr Numbers kE8m0Numbers = {Family::kFloat, 1, -127, 0x1p127, false, false, false, false, true};

enum class Saved : std::uint8_t { kTyped, kUntyped, kNever };

struct Row {
  ScalarType dtype;
  std::string_view name;
  Saved saved;
  std::string_view storage;
  Numbers numbers;
};

using T = ScalarType;

constexpr Row kRows[] = {
    {T::Bool, "bool", Saved::kTyped, "BoolStorage", integer(1, false)},
    {T::Byte, "uint8", Saved::kTyped, "ByteStorage", integer(8, false)},
    {T::Char, "int8", Saved::kTyped, "CharStorage", integer(7, true)},
    {T::Short, "int16", Saved::kTyped, "ShortStorage", integer(15, true)},
    {T::Int, "int32", Saved::kTyped, "IntStorage", integer(31, true)},
    {T::Long, "int64", Saved::kTyped, "LongStorage", integer(63, true)},
    {T::UInt16, "uint16", Saved::kUntyped, {}, integer(16, false)},
    {T::UInt32, "uint32", Saved::kUntyped, {}, integer(32, false)},
    {T::UInt64, "uint64", Saved::kUntyped, {}, integer(64, false)},
    {T::Half, "float16", Saved::kTyped, "HalfStorage", kHalfNumbers},
    {T::BFloat16, "bfloat16", Saved::kTyped, "BFloat16Storage", kBFloat16Numbers},
    {T::Float, "float32", Saved::kTyped, "FloatStorage", kFloatNumbers},
    {T::Double, "float64", Saved::kTyped, "DoubleStorage", kDoubleNumbers},
    {T::Float8_e4m3fn, "float8_e4m3fn", Saved::kUntyped, {}, finite(4, -9, 448, true)},
    {T::Float8_e4m3fnuz, "float8_e4m3fnuz", Saved::kUntyped, {}, finite(4, -10, 240, false)},
    {T::Float8_e5m2, "float8_e5m2", Saved::kUntyped, {}, ieee(3, -16, 57344)},
    {T::Float8_e5m2fnuz, "float8_e5m2fnuz", Saved::kUntyped, {}, finite(3, -17, 57344, false)},
    {maybe_Float8_e8m0fnu<T>(), "float8_e8m0fnu", Saved::kUntyped, {}, kE8m0Numbers},
    {maybe_Float4_e2m1fn_x2<T>(), "float4_e2m1fn_x2", Saved::kUntyped, {}, {}},
    {T::ComplexHalf, "complex32", Saved::kUntyped, {}, complex_of(kHalfNumbers)},
    {maybe_BComplex32<T>(), "bcomplex32", Saved::kUntyped, {}, complex_of(kBFloat16Numbers)},
    {T::ComplexFloat, "complex64", Saved::kTyped, "ComplexFloatStorage", complex_of(kFloatNumbers)},
    {T::ComplexDouble, "complex128", Saved::kTyped, "ComplexDoubleStorage", complex_of(kDoubleNumbers)},
    {T::QInt8, "qint8", Saved::kTyped, "QInt8Storage", {}},
    {T::QUInt8, "quint8", Saved::kTyped, "QUInt8Storage", {}},
    {T::QInt32, "qint32", Saved::kTyped, "QInt32Storage", {}},
    {T::QUInt4x2, "quint4x2", Saved::kNever, {}, {}},
    {T::QUInt2x4, "quint2x4", Saved::kNever, {}, {}},
    {T::Bits1x8, "bits1x8", Saved::kNever, {}, {}},
    {T::Bits2x4, "bits2x4", Saved::kNever, {}, {}},
    {T::Bits4x2, "bits4x2", Saved::kNever, {}, {}},
    {T::Bits8, "bits8", Saved::kNever, {}, {}},
    {T::Bits16, "bits16", Saved::kNever, {}, {}},
    {T::UInt1, "uint1", Saved::kNever, {}, {}},
    {T::UInt2, "uint2", Saved::kNever, {}, {}},
    {T::UInt3, "uint3", Saved::kNever, {}, {}},
    {T::UInt4, "uint4", Saved::kNever, {}, {}},
    {T::UInt5, "uint5", Saved::kNever, {}, {}},
    {T::UInt6, "uint6", Saved::kNever, {}, {}},
    {T::UInt7, "uint7", Saved::kNever, {}, {}},
    {maybe_Int1<T>(), "int1", Saved::kNever, {}, {}},
    {maybe_Int2<T>(), "int2", Saved::kNever, {}, {}},
    {maybe_Int3<T>(), "int3", Saved::kNever, {}, {}},
    {maybe_Int4<T>(), "int4", Saved::kNever, {}, {}},
    {maybe_Int5<T>(), "int5", Saved::kNever, {}, {}},
    {maybe_Int6<T>(), "int6", Saved::kNever, {}, {}},
    {maybe_Int7<T>(), "int7", Saved::kNever, {}, {}},
};

/// By `NewerDtype`, from the first that is one.
struct NewerRow {
  std::string_view name;
  ScalarType stand_in;
};
constexpr NewerRow kNewerRows[] = {
    {"float8_e8m0fnu", T::Byte},
    {"float4_e2m1fn_x2", T::Byte},
    {"bcomplex32", T::UInt32},
};

const Row* find_row(ScalarType dtype) {
  if (dtype == ScalarType::Undefined) return nullptr;
  for (const Row& row : kRows) {
    if (row.dtype == dtype) return &row;
  }
  return nullptr;
}

const Row& row_of(ScalarType dtype) {
  const Row* row = find_row(dtype);
  DCP_CHECK(row, kUnsupported, "dtype ", dtype == ScalarType::Undefined ? "Undefined" : c10::toString(dtype),
            " is not known here");
  return *row;
}

/// Whether floating-point numbers with the traits of `to` hold every number of `from`.
///
/// Smaller numbers than the smallest normal one need no case of their own: the lowest
/// bit of any number of `from` is at least `from.lowest_bit`.
bool is_subset(const Numbers& from, const Numbers& to) {
  return from.bits <= to.bits && from.lowest_bit >= to.lowest_bit && from.largest <= to.largest &&
         from.has_sign <= to.has_sign && from.has_zero <= to.has_zero && from.has_minus_zero <= to.has_minus_zero &&
         from.has_infinity <= to.has_infinity && from.has_nan <= to.has_nan;
}

bool is_integer_subset(const Numbers& from, const Numbers& to) {
  if (from.family != Family::kInteger || from.has_sign > to.has_sign) return false;
  return from.bits <= to.bits;
}

}  // namespace

std::string dtype_name(ScalarType dtype) { return std::string(row_of(dtype).name); }

std::optional<ScalarType> dtype_from_name(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.dtype != ScalarType::Undefined && row.name == name) return row.dtype;
  }
  return std::nullopt;
}

std::optional<NamedDtype> named_dtype(std::string_view name) {
  if (const auto dtype = dtype_from_name(name)) return NamedDtype{*dtype, NewerDtype::kNone};
  std::uint8_t number = 0;
  for (const NewerRow& row : kNewerRows) {
    ++number;
    if (row.name == name) return NamedDtype{row.stand_in, static_cast<NewerDtype>(number)};
  }
  return std::nullopt;
}

std::string dtype_name(const NamedDtype& dtype) {
  if (dtype.newer == NewerDtype::kNone) return dtype_name(dtype.dtype);
  return std::string(kNewerRows[static_cast<std::size_t>(dtype.newer) - 1].name);
}

std::int64_t element_bytes(ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(row_of(dtype).dtype));
}

StorageName storage_name(ScalarType dtype) {
  const Row& row = row_of(dtype);
  DCP_CHECK(row.saved != Saved::kNever, kUnsupported, "dtype ", row.name,
            " cannot be saved: torch.distributed.checkpoint has no form for it");
  if (row.saved == Saved::kUntyped) return {"torch.storage", "UntypedStorage", true};
  return {"torch", row.storage, false};
}

std::optional<ScalarType> dtype_from_storage_name(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.saved == Saved::kTyped && row.storage == name) return row.dtype;
  }
  return std::nullopt;
}

std::int64_t swap_unit_bytes(ScalarType dtype) {
  const std::int64_t bytes = element_bytes(dtype);
  return row_of(dtype).numbers.family == Family::kComplex ? bytes / 2 : bytes;
}

bool converts_without_loss(ScalarType from, ScalarType to) {
  if (from == to) return true;
  const Row* from_row = find_row(from);
  const Row* to_row = find_row(to);
  if (!from_row || !to_row) return false;
  const Numbers& source = from_row->numbers;
  const Numbers& target = to_row->numbers;
  switch (target.family) {
    case Family::kInteger:
      return is_integer_subset(source, target);
    case Family::kFloat:
      return (source.family == Family::kInteger || source.family == Family::kFloat) && is_subset(source, target);
    case Family::kComplex:
      return source.family != Family::kOther && is_subset(source, target);
    case Family::kOther:
      return false;
  }
  return false;
}

}  // namespace dcp
