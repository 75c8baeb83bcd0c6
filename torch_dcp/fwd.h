#pragma once

// Declares what public headers name without including: LibTorch's headers cost
// seconds for every source that sees them.

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace torch {
namespace nn {
class Module;
}
namespace optim {
class Optimizer;
}
}  // namespace torch

namespace dcp {
class Communicator;
class Dict;
class FileSystem;
class LoadPlanner;
class SavePlanCache;
class SavePlanner;
class Stateful;
class StorageReader;
class StorageWriter;
class Value;
struct LoadPlan;
struct Metadata;
struct SavePlan;
}  // namespace dcp
