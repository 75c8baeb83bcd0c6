#pragma once

#include <string_view>

// The names that `.metadata` and PyTorch share. Only exact pairs of module and name mean anything.

namespace dcp::metadata_names {

inline constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata";
inline constexpr std::string_view kFileSystemModule = "torch.distributed.checkpoint.filesystem";
/// Where TensorProperties and its enum were up to 2.2.
inline constexpr std::string_view kOldModule = "torch.distributed._shard.sharded_tensor.metadata";

inline constexpr std::string_view kMetadata = "Metadata";
inline constexpr std::string_view kTensorStorageMetadata = "TensorStorageMetadata";
inline constexpr std::string_view kBytesStorageMetadata = "BytesStorageMetadata";
inline constexpr std::string_view kChunkStorageMetadata = "ChunkStorageMetadata";
inline constexpr std::string_view kTensorProperties = "TensorProperties";
inline constexpr std::string_view kMetadataIndex = "MetadataIndex";
inline constexpr std::string_view kStorageMeta = "StorageMeta";
inline constexpr std::string_view kStorageInfo = "_StorageInfo";
inline constexpr std::string_view kMemoryFormat = "_MEM_FORMAT_ENCODING";
inline constexpr std::string_view kOldMemoryFormat = "MEM_FORMAT_ENCODING";

}  // namespace dcp::metadata_names
