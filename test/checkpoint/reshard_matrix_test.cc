#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "test/checkpoint/checkpoint_support.h"
#include "torch_dcp/storage/filesystem_reader.h"

// Every way in which a tensor may lie over ranks, loaded into every other: on meshes of one to three dimensions and up
// to eight ranks, cut by hand, and whole.

namespace dcp::test {
namespace {

/// How a tensor lies over the ranks of a world.
struct Form {
  enum class Kind : std::uint8_t { kPlain, kByHand, kMesh };
  std::string name;
  Kind kind = Kind::kPlain;
  Placements placements = {};  ///< kMesh
};

/// All placements on a mesh of so many dimensions: replicated, and each dimension of the tensor cut in both ways.
std::vector<Form> forms_on_mesh(std::size_t mesh_ndim, std::size_t tensor_ndim) {
  std::vector<Placement> choices = {Placement::replicate()};
  for (std::size_t d = 0; d < tensor_ndim; ++d) {
    choices.push_back(Placement::shard(static_cast<std::int64_t>(d)));
    // On three mesh dimensions one strided form does; the number of placements is the cube of the choices.
    if (d == 0 || mesh_ndim < 3) {
      choices.push_back(Placement::strided_shard(static_cast<std::int64_t>(d), d % 2 == 0 ? 2 : 3));
    }
  }
  std::vector<Form> forms = {{"", Form::Kind::kMesh, {}}};
  for (std::size_t m = 0; m < mesh_ndim; ++m) {
    std::vector<Form> longer;
    for (const Form& form : forms) {
      for (const Placement& choice : choices) {
        longer.push_back(form);
        longer.back().placements.push_back(choice);
        longer.back().name += (m > 0 ? ", " : "") + dcp::to_string(choice);
      }
    }
    forms = std::move(longer);
  }
  return forms;
}

/// Cuts a tensor into boxes of lengths 1, 2, 3, ... in each dimension.
std::vector<Box> boxes_by_hand(c10::IntArrayRef sizes) {
  std::vector<Box> boxes = {Box{}};
  for (const std::int64_t size : sizes) {
    std::vector<Box> cut;
    for (const Box& box : boxes) {
      for (std::int64_t begin = 0, length = 1; begin < size || begin == 0; begin += length++) {
        cut.push_back(box);
        cut.back().offsets.push_back(begin);
        cut.back().sizes.push_back(std::min(length, size - begin));
        if (size == 0) break;
      }
    }
    boxes = std::move(cut);
  }
  return boxes;
}

/// Several boxes for each rank; none for the last one.
ShardedTensor cut_by_hand(const at::Tensor& whole, int world, int rank) {
  const std::vector<Box> boxes = boxes_by_hand(whole.sizes());
  std::vector<Shard> shards;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    if (static_cast<int>(i) % std::max(1, world - 1) != rank) continue;
    at::Tensor part = whole;
    for (std::size_t d = 0; d < boxes[i].ndim(); ++d) {
      part = part.narrow(static_cast<std::int64_t>(d), boxes[i].offsets[d], boxes[i].sizes[d]);
    }
    shards.push_back({part.clone(), boxes[i].offsets});
  }
  return ShardedTensor(Sizes(whole.sizes()), whole.scalar_type(), std::move(shards));
}

Value spread(const Form& form, const at::Tensor& whole, const std::shared_ptr<const DeviceMesh>& mesh) {
  switch (form.kind) {
    case Form::Kind::kPlain:
      return whole.clone();
    case Form::Kind::kByHand:
      return cut_by_hand(whole, static_cast<int>(mesh->size()), static_cast<int>(mesh->my_rank()));
    case Form::Kind::kMesh:
      return DTensor::distribute(whole, mesh, form.placements);
  }
  return {};
}

/// The tensors in this process's memory.
std::vector<at::Tensor> parts_of(const Value& value) {
  if (value.kind() == ValueKind::kTensor) return {value.as_tensor()};
  if (value.kind() == ValueKind::kDTensor) return {value.as_dtensor().local()};
  std::vector<at::Tensor> parts;
  for (const Shard& shard : value.as_sharded_tensor().local_shards()) parts.push_back(shard.tensor);
  return parts;
}

/// Memory with an element of the pattern on either side of each tensor.
class Guarded {
 public:
  /// A tensor of the same kind and parts, all of it the pattern.
  Value blank(const Value& value) {
    if (value.kind() == ValueKind::kTensor) return blank_part(value.as_tensor());
    if (value.kind() == ValueKind::kDTensor) {
      const DTensor& tensor = value.as_dtensor();
      return DTensor(blank_part(tensor.local()), tensor.mesh_ptr(), tensor.placements(), tensor.global_sizes());
    }
    const ShardedTensor& tensor = value.as_sharded_tensor();
    std::vector<Shard> shards;
    for (const Shard& shard : tensor.local_shards()) shards.push_back({blank_part(shard.tensor), shard.offsets});
    return ShardedTensor(tensor.global_sizes(), tensor.dtype(), std::move(shards));
  }

  bool are_guards_intact() const {
    const std::int32_t guard = *pattern({1}, at::kInt).const_data_ptr<std::int32_t>();
    return std::all_of(bases_.begin(), bases_.end(), [guard](const at::Tensor& base) {
      const auto* elements = base.const_data_ptr<std::int32_t>();
      return elements[0] == guard && elements[base.numel() - 1] == guard;
    });
  }

 private:
  at::Tensor blank_part(const at::Tensor& part) {
    bases_.push_back(pattern({part.numel() + 2}, at::kInt));
    return bases_.back().narrow(0, 1, part.numel()).view(part.sizes());
  }

  std::vector<at::Tensor> bases_;
};

/// The whole tensor of a shape: element i is i.
at::Tensor whole_of(const Sizes& shape) { return counted(shape, at::kInt); }

/// Whether the parts are those of the whole, with `added` to each element.
bool are_parts(const Value& loaded, const Value& wanted, std::int32_t added) {
  const std::vector<at::Tensor> a = parts_of(loaded);
  const std::vector<at::Tensor> b = parts_of(wanted);
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].sizes() != b[i].sizes() || !a[i].is_contiguous() || !b[i].is_contiguous()) return false;
    const auto* x = a[i].const_data_ptr<std::int32_t>();
    const auto* y = b[i].const_data_ptr<std::int32_t>();
    for (std::int64_t e = 0; e < a[i].numel(); ++e) {
      if (x[e] != y[e] + added) return false;
    }
  }
  return true;
}

/// All forms on one mesh, for each of some shapes; one checkpoint when saved.
struct Group {
  struct Subject {
    std::string key;   ///< short: there are many
    std::string name;  ///< for messages
    Sizes shape;
    Form form;
    std::int32_t added;  ///< to the elements, so that no two are alike
  };

  std::string name;
  Sizes mesh;
  std::vector<Subject> subjects;

  int world() const { return static_cast<int>(c10::multiply_integers(mesh)); }
};

std::vector<Group> all_groups() {
  const Sizes uneven = {5, 3};  // fewer rows than five of the meshes have ranks
  const std::vector<Sizes> more = {{}, {1}, {7}, {0, 3}, {8, 4}, {2, 1, 3}};
  std::vector<Group> groups;
  const auto add = [&](const Sizes& mesh, bool has_more) {
    Group group{dcp::to_string(mesh), mesh, {}};
    std::vector<Sizes> shapes = {uneven};
    if (has_more) shapes.insert(shapes.end(), more.begin(), more.end());
    for (const Sizes& shape : shapes) {
      std::vector<Form> forms = forms_on_mesh(mesh.size(), shape.size());
      if (mesh.size() == 1) {
        forms.push_back({"plain", Form::Kind::kPlain});
        forms.push_back({"by hand", Form::Kind::kByHand});
      }
      for (Form& form : forms) {
        const auto number = static_cast<std::int32_t>(group.subjects.size());
        std::string name = dcp::to_string(shape) + " on " + group.name + " " + form.name;
        group.subjects.push_back(
            {std::to_string(number), std::move(name), shape, std::move(form), 1000 * (number + 1)});
      }
    }
    groups.push_back(std::move(group));
  };
  for (const std::int64_t ranks : {1, 2, 3, 4, 5, 6, 7, 8}) add({ranks}, ranks <= 3 || ranks == 8);
  add({2, 2}, true);
  for (const Sizes& mesh : {Sizes{2, 3}, Sizes{3, 2}, Sizes{2, 4}, Sizes{4, 2}}) add(mesh, false);
  add({2, 2, 2}, false);
  return groups;
}

struct Pair {
  const Group::Subject* from;
  const Group::Subject* to;
  std::string key() const { return from->key + ">" + to->key; }
  std::string name() const { return from->name + " -> " + to->name; }
};

std::vector<Pair> pairs_of(const Group& from, const Group& to) {
  std::vector<Pair> pairs;
  for (const Group::Subject& a : from.subjects) {
    for (const Group::Subject& b : to.subjects) {
      if (a.shape == b.shape) pairs.push_back({&a, &b});
    }
  }
  return pairs;
}

/// Reads a group's checkpoint as if each tensor had been saved once for each form that it is loaded into: one load then
/// tries all pairs, without a copy of the bytes for each.
class PairReader final : public FileSystemReader {
 public:
  PairReader(const std::string& path, std::shared_ptr<FileSystem> files, const std::vector<Pair>& pairs)
      : FileSystemReader(path, {.file_system = std::move(files)}), pairs_(pairs) {}

  std::optional<Metadata> read_metadata() override {
    const Metadata stored = FileSystemReader::read_metadata().value();
    std::map<std::string, std::vector<std::pair<MetadataIndex, StorageInfo>>> items;
    for (const auto& [index, info] : stored.storage_data) items[index.fqn].emplace_back(index, info);
    Metadata metadata;
    metadata.storage_meta = stored.storage_meta;
    metadata.version = stored.version;
    for (const Pair& pair : pairs_) {
      metadata.state_dict_metadata.insert(pair.key(), *stored.state_dict_metadata.find(pair.from->key));
      for (auto [index, info] : items.at(pair.from->key)) {
        index.fqn = pair.key();
        metadata.storage_data.insert(std::move(index), std::move(info));
      }
    }
    return metadata;
  }

 private:
  const std::vector<Pair>& pairs_;
};

void save_group(const Group& group, const std::shared_ptr<FileSystem>& files) {
  run_ranks(group.world(), [&](RankContext& ranks) {
    const auto mesh = DeviceMesh::make(group.mesh, ranks.rank());
    StateDict state;
    for (const Group::Subject& subject : group.subjects) {
      state[subject.key] = spread(subject.form, whole_of(subject.shape) + subject.added, mesh);
    }
    place_of(ranks, files).save(state, group.name);
  });
}

/// Loads everything that `from` saved into every form of `to`.
void load_group(const Group& from, const Group& to, const std::vector<Pair>& pairs, const Place& place,
                const RankContext& ranks) {
  const auto mesh = DeviceMesh::make(to.mesh, ranks.rank());
  std::map<const Group::Subject*, Value> wanted;
  for (const Group::Subject& subject : to.subjects) {
    wanted.emplace(&subject, spread(subject.form, whole_of(subject.shape), mesh));
  }
  Guarded memory;
  StateDict state;
  for (const Pair& pair : pairs) state[pair.key()] = memory.blank(wanted.at(pair.to));
  PairReader reader(from.name, place.files, pairs);
  LoadOptions options;
  options.communicator = place.communicator;
  const LoadReport report = dcp::load(state, reader, options);
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty() && report.converted.empty());
  for (const Pair& pair : pairs) {
    EXPECT_TRUE(are_parts(state.at(pair.key()), wanted.at(pair.to), pair.from->added))
        << pair.name() << ", rank " << ranks.rank();
  }
  EXPECT_TRUE(memory.are_guards_intact()) << from.name << " -> " << to.name << ", rank " << ranks.rank();
}

TEST(ReshardMatrix, EveryFormLoadsIntoEveryOther) {
  const auto files = make_memory_file_system();
  const std::vector<Group> groups = all_groups();
  for (const Group& group : groups) save_group(group, files);
  std::size_t pair_count = 0;
  std::size_t form_count = 0;
  for (const Group& to : groups) {
    std::vector<std::vector<Pair>> pairs;
    for (const Group& from : groups) {
      pairs.push_back(pairs_of(from, to));
      pair_count += pairs.back().size();
    }
    form_count += to.subjects.size();
    run_ranks(to.world(), [&](RankContext& ranks) {
      const Place place = place_of(ranks, files);
      for (std::size_t i = 0; i < groups.size(); ++i) load_group(groups[i], to, pairs[i], place, ranks);
    });
  }
  std::cout << pair_count << " pairs of " << form_count << " forms on " << groups.size() << " meshes\n";
  EXPECT_GT(pair_count, 50'000u);
}

/// Meshes of some of four ranks, or of all in another order.
std::vector<std::pair<Sizes, std::vector<std::int64_t>>> meshes_among_four() {
  return {{{2}, {1, 3}}, {{2}, {2, 0}}, {{3}, {3, 0, 2}}, {{1}, {2}}, {{2, 2}, {3, 1, 0, 2}}};
}

// The ranks that a mesh leaves out take part in every save and load, and hold nothing.
TEST(ReshardMatrix, MeshesOfSomeOfTheRanksInAnyOrder) {
  const auto files = make_memory_file_system();
  const at::Tensor whole = whole_of({5, 3});
  std::atomic<std::size_t> pair_count = 0;
  run_ranks(4, [&](RankContext& ranks) {
    const Place place = place_of(ranks, files);
    const auto for_each_form = [&](const auto& visit) {
      for (const auto& [shape, members] : meshes_among_four()) {
        const auto mesh = std::make_shared<const DeviceMesh>(shape, members, ranks.rank());
        for (const Form& form : forms_on_mesh(shape.size(), 2)) visit(mesh, form);
      }
    };
    StateDict saved;
    for_each_form([&](const auto& mesh, const Form& form) {
      const std::string key = "from " + std::to_string(saved.size());
      saved[key] = spread(form, whole + static_cast<std::int64_t>(100 * saved.size()), mesh);
    });
    place.save(saved, "c");
    for_each_form([&](const auto& mesh, const Form& form) {
      const Value wanted = spread(form, whole, mesh);
      Guarded memory;
      StateDict state;
      for (const auto& [key, value] : saved) state[key] = memory.blank(wanted);
      place.load(state, "c");
      std::int32_t added = 0;
      for (const auto& [key, value] : state) {
        EXPECT_TRUE(are_parts(value, wanted, added)) << dcp::to_string(key) << " -> " << form.name;
        added += 100;
        if (ranks.rank() == 0) ++pair_count;
      }
      EXPECT_TRUE(memory.are_guards_intact());
    });
    StateDict wholes;
    for (const auto& [key, value] : saved) wholes[key] = pattern({5, 3}, at::kInt);
    place.load(wholes, "c");
    std::int64_t added = 0;
    for (const auto& [key, value] : wholes) {
      EXPECT_TRUE(bit_equal(value, whole + added)) << dcp::to_string(key);
      added += 100;
    }
  });
  std::cout << pair_count << " pairs\n";
  EXPECT_EQ(pair_count.load(), 45u * 45u);
}

// Summands are no parts of a whole: neither side takes them, on any mesh, beside whatever other placement.
TEST(ReshardMatrix, PartialIsRefusedByNameOnBothSides) {
  const std::vector<Placements> on_two = {{Placement::partial(), Placement::replicate()},
                                          {Placement::shard(0), Placement::partial("avg")},
                                          {Placement::partial("max"), Placement::partial("max")}};
  for (const Placements& placements : on_two) {
    const auto files = make_memory_file_system();
    ErrorsByRank save_errors(4);
    ErrorsByRank load_errors(4);
    run_ranks(4, [&](RankContext& ranks) {
      const Place place = place_of(ranks, files);
      const auto mesh = DeviceMesh::make({2, 2}, ranks.rank());
      place.save({{"summed", counted({4, 3})}, {"other", counted({2})}}, "c");
      const std::map<std::string, Bytes> before = contents_of(*files, "c");
      const auto partial = [&] { return pattern_on(mesh, placements, {4, 3}); };
      save_errors.run(ranks.rank(), [&] { place.save({{"summed", partial()}, {"other", counted({2})}}, "c"); });
      place.communicator->all_gather({});
      EXPECT_EQ(contents_of(*files, "c"), before);
      StateDict state = {{"summed", partial()}, {"other", pattern({2})}};
      load_errors.run(ranks.rank(), [&] { place.load(state, "c"); });
      EXPECT_TRUE(is_pattern(state.at("other").as_tensor()));
      EXPECT_TRUE(is_pattern(state.at("summed").as_dtensor().local()));
    });
    for (const ErrorsByRank* errors : {&save_errors, &load_errors}) {
      errors->expect(all_of(4), {"'summed'", "Partial placement"});
      EXPECT_EQ(errors->kind(), ErrorKind::kUnsupported);
    }
  }
}

}  // namespace
}  // namespace dcp::test
