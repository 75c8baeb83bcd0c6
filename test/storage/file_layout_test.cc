#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "test/support/expect_error.h"
#include "torch_dcp/storage/file_layout_internal.h"

namespace dcp::test {
namespace {

using Bins = std::vector<std::vector<std::size_t>>;

WriteItem tensor_of(std::int64_t elements) {
  WriteItem item;
  item.type = WriteItemType::kShard;
  item.chunk = {{0}, {elements}};
  return item;
}

SavePlan plan_of(const std::vector<std::int64_t>& sizes) {
  SavePlan plan;
  for (const std::int64_t size : sizes) plan.items.push_back(size < 0 ? WriteItem() : tensor_of(size));
  return plan;
}

TEST(FileLayout, NamesAreThoseOfPyTorch) {
  EXPECT_EQ(file_layout::data_file_name(3, 0, ""), "__3_0.distcp");
  EXPECT_EQ(file_layout::data_file_name(12, 7, "0123abcd"), "__12_7-0123abcd.distcp");
  EXPECT_EQ(file_layout::rank_metadata_name(3), "__3.metadata");
  EXPECT_EQ(file_layout::side_file_name("an-id"), ".torch_dcp-an-id.json");
  EXPECT_EQ(file_layout::side_file_name("an-id", 12), "__12.torch_dcp-an-id.json");
}

TEST(FileLayout, DataFilesNameTheirRank) {
  EXPECT_EQ(file_layout::rank_of_data_file("__3_0.distcp"), 3);
  EXPECT_EQ(file_layout::rank_of_data_file("__12_7-0123abcd.distcp"), 12);
  for (const char* name : {"__3.metadata", "__x_0.distcp", "other_3_0.distcp", "__99999999999_0.distcp", ""}) {
    EXPECT_EQ(file_layout::rank_of_data_file(name), std::nullopt) << name;
  }
}

TEST(FileLayout, OnlyNamesThatASaveMakesAreTakenForItsFiles) {
  for (const char* name : {".metadata", ".metadata.tmp", "__0_0.distcp", "__11_22.distcp", "__0_0-0123abcd.distcp",
                           "__3.metadata", "__3.metadata.tmp", ".torch_dcp-x.json", ".torch_dcp-x.json.tmp",
                           "__3.torch_dcp-x.json", "__3.torch_dcp-x.json.tmp"}) {
    EXPECT_TRUE(file_layout::is_checkpoint_file(name)) << name;
  }
  for (const char* name : {"",
                           ".tmp",
                           "metadata",
                           "model.pt",
                           "__0.distcp",
                           "__a_0.distcp",
                           "__0_.distcp",
                           "_0_0.distcp",
                           "__0_0.distcp.bak",
                           "__0_0-mine.distcp",
                           "__0_0-0123abcde.distcp",
                           "__0_0-0123abc.distcp",
                           "__0_0-0123ABCD.distcp",
                           "my__0_0.distcp",
                           "__x.metadata",
                           "__.metadata",
                           "a.metadata",
                           "notes.json",
                           ".torch_dcp",
                           "__-1.metadata",
                           "__.torch_dcp-x.json",
                           "__x.torch_dcp-x.json",
                           "3.torch_dcp-x.json",
                           ".metadata.bak"}) {
    EXPECT_FALSE(file_layout::is_checkpoint_file(name)) << name;
  }
}

TEST(FileLayout, RanksOfMetadata) {
  EXPECT_EQ(file_layout::rank_of_metadata("__12.metadata"), 12);
  for (const char* name : {"__99999999999999999999.metadata", "__.metadata", ".metadata", "__1x.metadata",
                           "__-1.metadata", "__1.metadata.tmp"}) {
    EXPECT_EQ(file_layout::rank_of_metadata(name), std::nullopt) << name;
  }
}

TEST(FileLayout, OneBinKeepsTheOrderOfThePlanBehindObjects) {
  EXPECT_EQ(file_layout::split_into_bins(plan_of({4, -1, 9, 2, -1}), 1), (Bins{{1, 4, 0, 2, 3}}));
}

TEST(FileLayout, SeveralBinsAreFilledAsPyTorchFillsThem) {
  // Objects 0, 3, 6 round robin; tensors largest first, each to the lightest bin.
  EXPECT_EQ(file_layout::split_into_bins(plan_of({-1, 5, 7, -1, 1, 7, -1, 4}), 2), (Bins{{0, 6, 2, 1}, {3, 5, 7, 4}}));
  EXPECT_EQ(file_layout::split_into_bins(plan_of({1}), 3), (Bins{{0}, {}, {}}));
  EXPECT_EQ(file_layout::split_into_bins(plan_of({}), 2), (Bins{{}, {}}));
  expect_error(ErrorKind::kInvalidArgument, "at least one file", [] { file_layout::split_into_bins(SavePlan(), 0); });
}

}  // namespace
}  // namespace dcp::test
