#include <gtest/gtest.h>

#include <cstdlib>

#include "test/conformance/file_system_suite.h"
#include "test/support/crashing_file_system.h"
#include "test/support/fault_injecting_file_system.h"
#include "torch_dcp/io/local_file_system.h"
#include "torch_dcp/io/memory_file_system.h"

namespace dcp::test {
namespace {

std::string make_local_root(FileSystem&) {
  std::string path = join_path(::testing::TempDir(), "suiteXXXXXX");
  DCP_CHECK(::mkdtemp(path.data()) != nullptr, kIo, "cannot make ", path);
  return path;
}

std::string make_root(FileSystem& files) {
  files.create_directories("/some/root");
  return "/some/root";
}

std::string make_relative_root(FileSystem& files) {
  files.create_directories("some/root");
  return "some/root";
}

INSTANTIATE_TEST_SUITE_P(
    All, FileSystemSuite,
    ::testing::Values(FileSystemCase{"Local", local_file_system, make_local_root},
                      FileSystemCase{"Memory", make_memory_file_system, make_root},
                      FileSystemCase{"MemoryRelative", make_memory_file_system, make_relative_root},
                      FileSystemCase{"Crashing", make_crashing_file_system, make_root},
                      FileSystemCase{"WrappedMemory",
                                     [] { return std::make_shared<FileSystemWrapper>(make_memory_file_system()); },
                                     make_root},
                      FileSystemCase{"FaultInjectingLocal",
                                     [] { return std::make_shared<FaultInjectingFileSystem>(local_file_system()); },
                                     make_local_root}),
    case_name);

}  // namespace
}  // namespace dcp::test
