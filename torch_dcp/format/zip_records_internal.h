#pragma once

#include <cstdint>

// The fixed parts of a zip's records, as the zip format's public description (APPNOTE) has them.

namespace dcp::zip {

inline constexpr std::uint32_t kLocalHeaderSignature = 0x04034b50;
inline constexpr std::uint32_t kDataDescriptorSignature = 0x08074b50;
inline constexpr std::uint32_t kDirectoryRecordSignature = 0x02014b50;
inline constexpr std::uint32_t kZip64EndRecordSignature = 0x06064b50;
inline constexpr std::uint32_t kZip64LocatorSignature = 0x07064b50;
inline constexpr std::uint32_t kEndRecordSignature = 0x06054b50;

inline constexpr std::int64_t kLocalHeaderBytes = 30;
inline constexpr std::int64_t kDirectoryRecordBytes = 46;
inline constexpr std::int64_t kZip64EndRecordBytes = 56;
inline constexpr std::int64_t kZip64LocatorBytes = 20;
inline constexpr std::int64_t kEndRecordBytes = 22;
inline constexpr std::int64_t kMaxCommentBytes = 0xFFFF;

/// A number that does not fit its field is written as this, and stands in a zip64 place.
inline constexpr std::uint16_t kFull16 = 0xFFFF;
inline constexpr std::uint32_t kFull32 = 0xFFFFFFFF;

inline constexpr std::uint16_t kZip64ExtraId = 0x0001;
inline constexpr std::uint16_t kPaddingExtraId = 0x4246;  // "FB"

inline constexpr std::uint16_t kFlagEncrypted = 1u << 0;
inline constexpr std::uint16_t kFlagDataDescriptor = 1u << 3;  // CRC and sizes follow the data
inline constexpr std::uint16_t kFlagPatched = 1u << 5;
inline constexpr std::uint16_t kFlagStrongEncryption = 1u << 6;
inline constexpr std::uint16_t kFlagUtf8 = 1u << 11;
inline constexpr std::uint16_t kFlagMaskedHeader = 1u << 13;

inline constexpr std::uint16_t kMethodStored = 0;
inline constexpr std::uint16_t kMethodDeflated = 8;

}  // namespace dcp::zip
