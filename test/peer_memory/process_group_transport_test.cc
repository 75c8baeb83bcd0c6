#include "torch_dcp/peer_memory/process_group_transport.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "test/support/expect_error.h"
#include "test/support/rank_runner.h"
#include "torch_dcp/base/byte_codec.h"
#include "torch_dcp/base/error.h"
#include "torch_dcp/format/crc32.h"
#include "torch_dcp/format/object_item.h"
#include "torch_dcp/peer_memory/transport_head_internal.h"
#include "torch_dcp/peer_memory/transport_incoming_internal.h"
#include "torch_dcp/peer_memory/transport_messages_internal.h"
#include "torch_dcp/peer_memory/transport_pieces_internal.h"
#include "torch_dcp/state_dict/equal.h"
#include "torch_dcp/state_dict/stateful.h"
#include "torch_dcp/tensor/device_mesh.h"
#include "torch_dcp/tensor/dtype.h"
#include "torch_dcp/tensor/quantized.h"

namespace dcp::test {
namespace {

using dcp::testing::RankContext;
using dcp::testing::run_ranks;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::int64_t kStep = 7;

std::shared_ptr<ProcessGroupTransport> make_transport(RankContext& context, const TransportOptions& options = {},
                                                      milliseconds deadline = seconds(20)) {
  PeerLinkOptions link_options;
  link_options.deadline = deadline;
  link_options.store = context.store();
  link_options.group_factory = gloo_group_factory({.hostname = "127.0.0.1", .interface = ""});
  return ProcessGroupTransport::create(context.unconnected_group(), options, link_options);
}

void meet(RankContext& context, const std::string& name) {
  context.store()->add("meet/" + name, 1);
  while (context.store()->add("meet/" + name, 0) < context.size()) std::this_thread::sleep_for(milliseconds(1));
}

void expect_same(const Value& value, const Value& expected) { EXPECT_EQ(first_difference(value, expected), ""); }

// The same tensor in memory: also strides, offset, flags.
void expect_same_place(const at::Tensor& tensor, const at::Tensor& expected) {
  EXPECT_EQ(tensor.strides(), expected.strides());
  EXPECT_EQ(tensor.storage_offset(), expected.storage_offset());
  EXPECT_EQ(tensor.is_conj(), expected.is_conj());
  EXPECT_EQ(tensor.is_neg(), expected.is_neg());
  EXPECT_EQ(tensor.requires_grad(), expected.requires_grad());
}

// Rank 0 sends what `make` gives to rank 1, which gets `check(received)`.
void one_to_one(const std::function<Dict()>& make, const std::function<void(const Dict& received)>& check,
                const TransportOptions& options = {}) {
  run_ranks(2, [&](RankContext& context) {
    auto transport = make_transport(context, options);
    if (context.rank() == 0) {
      transport->send(make(), kStep, 1);
    } else {
      check(transport->receive(kStep, 0));
    }
    meet(context, "end");
  });
}

void expect_round_trip(const Dict& state, const TransportOptions& options = {}) {
  one_to_one([&] { return state; }, [&](const Dict& received) { expect_same(received, state); }, options);
}

at::Tensor random_bits(at::IntArrayRef sizes, at::ScalarType dtype) {
  const at::Tensor tensor = at::empty(sizes, at::TensorOptions(dtype));
  at::Tensor bytes = at::empty({0}, at::TensorOptions(at::kByte));
  bytes.set_(tensor.storage(), 0, {static_cast<std::int64_t>(tensor.storage().nbytes())}, {1});
  bytes.random_(0, dtype == at::kBool ? 2 : 256);
  return tensor;
}

// Upstream's states: plain, mixed, on a mesh, in shards.
std::vector<Dict> ring_states(int rank, int size) {
  const double seed = rank + 1;
  const Dict plain{{"weight", at::full({10, 3}, seed)}, {"bias", at::arange(5).to(at::kFloat) * seed}};
  const Dict mixed{{"weight", at::full({10, 3}, seed).to(at::kBFloat16)},
                   {"step", std::int64_t{3} * rank},
                   {"nested", Dict{{"list", List{at::full({2}, seed), std::string("text"), None()}}, {3, 2.5 * rank}}},
                   {"big", at::full({200, 200}, seed, at::kDouble)}};
  const auto mesh = DeviceMesh::make({size}, rank);
  const Dict spread{
      {"rows", DTensor::distribute(at::arange(size * 6).reshape({size * 2, 3}) * seed, mesh, {Placement::shard(0)})},
      {"all", DTensor::distribute(at::full({4}, seed), mesh, {Placement::replicate()})}};
  const Dict sharded{{"parts", ShardedTensor({size * 2, 4}, at::kFloat,
                                             {{at::full({1, 4}, seed), {rank * 2, 0}},
                                              {at::full({1, 4}, -seed), {rank * 2 + 1, 0}}})}};
  return {plain, mixed, spread, sharded};
}

TEST(Transport, RingOfEightWithStatesOfAllKinds) {
  constexpr int kRanks = 8;
  run_ranks(kRanks, [&](RankContext& context) {
    auto transport = make_transport(context);
    const int next = (context.rank() + 1) % kRanks;
    const int previous = (context.rank() + kRanks - 1) % kRanks;
    const auto mine = ring_states(context.rank(), kRanks);
    const auto theirs = ring_states(previous, kRanks);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      context.note("state " + std::to_string(i));
      const Dict received = transport->exchange(mine[i], static_cast<std::int64_t>(i), next, previous);
      expect_same(received, theirs[i]);
    }
    meet(context, "end");
  });
}

TEST(Transport, MessagesArePeersTimesThreeAndThePieces) {
  const auto make = [] {
    Dict state{{"step", 3}, {"empty", at::empty({0})}};
    for (int i = 0; i < 10; ++i) state["small" + std::to_string(i)] = at::full({100}, i, at::kFloat);  // 400 bytes each
    state["large"] = at::full({100'000}, 1, at::kDouble);                                              // 800,000 bytes
    state["exact"] = at::full({25'000}, 1, at::kFloat);                                                // 100,000 bytes
    return state;
  };
  run_ranks(4, [&](RankContext& context) {
    TransportOptions options;
    options.piece_bytes = 100'000;
    auto transport = make_transport(context, options);
    if (context.rank() == 0) {
      transport->send(make(), kStep, {1, 2, 3});
      const TransportCounts counts = transport->counts();
      const std::uint64_t pieces = 1 + 8 + 1;  // the small ones together; the large ones each by itself
      EXPECT_EQ(counts.messages_sent, 3 * (3 + pieces));
      EXPECT_EQ(counts.messages_received, 3 * 3u);
      const std::uint64_t data = 10 * 400 + 800'000 + 100'000;
      EXPECT_GT(counts.bytes_sent, 3 * data);
      EXPECT_LT(counts.bytes_sent, 3 * (data + 5'000));
    } else {
      expect_same(transport->receive(kStep, 0), make());
      EXPECT_EQ(transport->counts().messages_received, 13u);
      EXPECT_EQ(transport->counts().messages_sent, 3u);
    }
    meet(context, "end");
  });
}

TEST(Transport, PiecesAreCutAlikeAndCoverEachByteOnce) {
  const std::vector<std::int64_t> sizes{0, 5, 70'000, 65'536, 1, 300'000, 0, 65'537};
  for (const std::int64_t piece_bytes : {1, 7, 65'536, 100'000, 1'000'000}) {
    std::vector<std::int64_t> reached(sizes.size());
    for (const Piece& piece : cut_pieces(sizes, piece_bytes)) {
      EXPECT_GT(piece.bytes, 0);
      EXPECT_LE(piece.bytes, piece_bytes);
      std::int64_t total = 0;
      for (const PieceSegment& segment : piece.segments) {
        EXPECT_EQ(segment.offset, reached[segment.storage]);
        reached[segment.storage] += segment.bytes;
        total += segment.bytes;
      }
      EXPECT_EQ(total, piece.bytes);
    }
    EXPECT_EQ(reached, sizes);
  }
}

TEST(Transport, EveryKindOfValue) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Opaque opaque;
  opaque.type_name = "collections.deque";
  opaque.item = std::make_shared<const Bytes>(encode_object_item(List{1, 2}));
  const Dict state{{"none", None()},
                   {"true", true},
                   {"int", std::numeric_limits<std::int64_t>::min()},
                   {"double", -0.0},
                   {"nan", nan},
                   {"text", std::string("a\0b", 3)},
                   {"bytes", Bytes{0, 255, 7}},
                   {"tensor", at::arange(6)},
                   {-5, "an integer key"},
                   {"dict", Dict{{"", Dict()}, {1, List()}}},
                   {"list", List{Tuple{1, at::ones({2}), Tuple()}, List{Dict{{"deep", at::zeros({})}}}}},
                   {"opaque", opaque}};
  one_to_one([&] { return state; },
             [&](const Dict& received) {
               Dict rest = received;
               Dict expected = state;
               EXPECT_EQ(rest.at("opaque").as_opaque().type_name, opaque.type_name);
               EXPECT_EQ(*rest.at("opaque").as_opaque().item, *opaque.item);
               rest.erase("opaque");
               expected.erase("opaque");
               expect_same(rest, expected);
             });
  expect_round_trip({});
}

TEST(Transport, EveryDtypeToTheBit) {
  Dict state;
  for (int i = 0; i < static_cast<int>(c10::ScalarType::NumOptions); ++i) {
    const auto dtype = static_cast<c10::ScalarType>(i);
    if (dtype == c10::ScalarType::Undefined || dtype == at::kQUInt4x2 || dtype == at::kQUInt2x4) continue;
    try {
      dtype_name(dtype);
    } catch (const Error&) {
      continue;
    }
    if (is_quantized_dtype(dtype)) continue;
    state[dtype_name(dtype)] = random_bits({3, 5}, dtype);
  }
  EXPECT_GT(state.size(), 30u);
  one_to_one([&] { return state; },
             [&](const Dict& received) {
               ASSERT_EQ(received.size(), state.size());
               for (const auto& [key, value] : state) {
                 const at::Tensor& sent = value.as_tensor();
                 const at::Tensor& got = received.at(key).as_tensor();
                 EXPECT_EQ(got.scalar_type(), sent.scalar_type());
                 EXPECT_EQ(got.sizes(), sent.sizes());
                 const auto* from = static_cast<const std::uint8_t*>(sent.const_data_ptr());
                 const auto* to = static_cast<const std::uint8_t*>(got.const_data_ptr());
                 EXPECT_TRUE(std::equal(from, from + sent.nbytes(), to)) << to_string(key);
               }
             });
}

TEST(Transport, QuantizedTensorsKeepTheirQuantizers) {
  const at::Tensor numbers = at::randn({4, 3});
  const at::Tensor scales = at::tensor({0.1, 0.2, 0.3}, at::kDouble);
  const at::Tensor zero_points = at::tensor({1, 2, 3}, at::kLong);
  const Dict state{{"qint8", at::quantize_per_tensor(numbers, 0.1, 3, at::kQInt8)},
                   {"quint8", at::quantize_per_tensor(numbers, 0.2, 10, at::kQUInt8)},
                   {"qint32", at::quantize_per_tensor(numbers, 0.001, 0, at::kQInt32)},
                   {"channels", at::quantize_per_channel(numbers, scales, zero_points, 1, at::kQInt8)}};
  expect_round_trip(state);
  // In place too: the given one has another quantizer.
  run_ranks(2, [&](RankContext& context) {
    auto transport = make_transport(context, [] {
      TransportOptions options;
      options.strict_in_place = true;
      return options;
    }());
    if (context.rank() == 0) {
      transport->send(state, kStep, 1);
    } else {
      Dict given{{"qint8", at::quantize_per_tensor(at::zeros({4, 3}), 1.0, 0, at::kQInt8)},
                 {"quint8", at::quantize_per_tensor(at::zeros({4, 3}), 1.0, 0, at::kQUInt8)},
                 {"qint32", at::quantize_per_tensor(at::zeros({4, 3}), 1.0, 0, at::kQInt32)},
                 {"channels", at::quantize_per_tensor(at::zeros({4, 3}), 1.0, 0, at::kQInt8)}};
      const void* const memory = given.at("channels").as_tensor().const_data_ptr();
      transport->receive_into(given, kStep, 0);
      expect_same(given, state);
      EXPECT_EQ(given.at("channels").as_tensor().const_data_ptr(), memory);
    }
    meet(context, "end");
  });
}

TEST(Transport, StridesOffsetsAndSharedStorages) {
  const at::Tensor base = at::arange(100, at::kFloat).reshape({10, 10});
  const at::Tensor tied = at::randn({4});
  at::Tensor leaf = at::randn({3});
  leaf.set_requires_grad(true);
  const at::Tensor complex = at::view_as_complex(at::randn({5, 2}));
  const Dict state{{"column", base.select(1, 3)},
                   {"row", base.select(0, 4)},
                   {"transposed", base.t()},
                   {"every", base.slice(0, 1, 9, 2)},
                   {"tied", List{tied, tied, tied.slice(0, 1)}},
                   {"expanded", at::full({1, 3}, 2.5).expand({4, 3})},
                   {"from one", at::ones({}).expand({3, 3})},
                   {"channels last", at::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast)},
                   {"conj", complex.conj()},
                   {"imag", at::imag(complex.conj())},
                   {"0-dim", at::full({}, 4)},
                   {"empty", at::empty({3, 0, 2})},
                   {"empty view", base.slice(0, 5, 5)},
                   {"undefined", List{at::Tensor()}},
                   {"leaf", leaf},
                   {"not a leaf", leaf * 2}};
  one_to_one([&] { return state; },
             [&](const Dict& received) {
               EXPECT_FALSE(received.at("undefined").as_list()[0].as_tensor().defined());
               EXPECT_FALSE(received.at("not a leaf").as_tensor().requires_grad());
               for (const auto& [key, value] : state) {
                 if (!value.is_tensor() || key == Key("not a leaf")) continue;
                 SCOPED_TRACE(to_string(key));
                 const at::Tensor& got = received.at(key).as_tensor();
                 expect_same_place(got, value.as_tensor());
                 expect_same(got.detach().resolve_conj().resolve_neg(),
                             value.as_tensor().detach().resolve_conj().resolve_neg());
               }
               const auto storage_of = [&](const char* key) {
                 return received.at(key).as_tensor().storage().unsafeGetStorageImpl();
               };
               EXPECT_EQ(storage_of("column"), storage_of("row"));
               EXPECT_EQ(storage_of("column"), storage_of("transposed"));
               EXPECT_EQ(storage_of("conj"), storage_of("imag"));
               const List& list = received.at("tied").as_list();
               EXPECT_TRUE(list[0].as_tensor().is_same(list[1].as_tensor()));
               list[0].as_tensor().fill_(9);
               EXPECT_EQ(list[2].as_tensor()[0].item<float>(), 9);
             });
}

TEST(Transport, OfASliceOnlyItsBytesAreSent) {
  run_ranks(2, [&](RankContext& context) {
    auto transport = make_transport(context);
    const at::Tensor whole = at::arange(1'000'000, at::kLong);
    if (context.rank() == 0) {
      transport->send({{"slice", whole.slice(0, 500'000, 500'010)}, {"inner", whole.slice(0, 500'005, 500'008)}}, kStep,
                      1);
      EXPECT_LT(transport->counts().bytes_sent, 10'000u);
    } else {
      const Dict received = transport->receive(kStep, 0);
      expect_same(received.at("slice"), whole.slice(0, 500'000, 500'010).clone());
      EXPECT_EQ(received.at("slice").as_tensor().storage_offset(), 500'000);
    }
    meet(context, "end");
  });
}

TEST(Transport, InPlaceWhereTensorsAgree) {
  run_ranks(2, [&](RankContext& context) {
    auto transport = make_transport(context);
    const at::Tensor matrix = at::arange(20, at::kFloat).reshape({4, 5});
    const at::Tensor flat = at::arange(12, at::kFloat);
    const Dict state{{"same", matrix},
                     {"dtype", at::ones({3}, at::kDouble)},
                     {"sizes", at::ones({3})},
                     {"strides", matrix.t().contiguous()},
                     {"views", List{flat.slice(0, 0, 5), flat.slice(0, 5, 12).reshape({7, 1})}},
                     {"column", matrix.clone().select(1, 2)},
                     {"expanded", at::full({1, 3}, 2.5).expand({4, 3})},
                     {"new", at::ones({2})},
                     {"number", 5}};
    if (context.rank() == 0) {
      transport->send(state, kStep, 1);
    } else {
      at::Tensor given_flat = at::zeros({20});
      const at::Tensor other = at::full({4, 5}, -1.0);
      Dict given{{"same", at::zeros({4, 5})},
                 {"dtype", at::zeros({3})},
                 {"sizes", at::zeros({4})},
                 {"strides", at::zeros({4, 5}).t()},
                 {"views", List{given_flat.slice(0, 3, 8), given_flat.slice(0, 8, 15).reshape({7, 1})}},
                 {"column", other.select(1, 4)},
                 {"expanded", at::zeros({1, 3}).expand({4, 3})},
                 {"number", 1},
                 {"old", at::ones({1})}};
      const Dict before = given;
      transport->receive_into(given, kStep, 0);
      expect_same(given, state);
      const auto is_kept = [&](const char* key) {
        return given.at(key).as_tensor().is_same(before.at(key).as_tensor());
      };
      EXPECT_TRUE(is_kept("same"));
      EXPECT_FALSE(is_kept("dtype"));
      EXPECT_FALSE(is_kept("sizes"));
      EXPECT_FALSE(is_kept("strides"));
      EXPECT_TRUE(is_kept("column"));
      EXPECT_TRUE(is_kept("expanded"));
      // Neighbours of what was filled stay.
      expect_same(given_flat.slice(0, 3, 15), flat);
      expect_same(given_flat.slice(0, 0, 3), at::zeros({3}));
      expect_same(given_flat.slice(0, 15, 20), at::zeros({5}));
      expect_same(other.slice(1, 0, 4), at::full({4, 4}, -1.0));
      expect_same(before.at("dtype"), at::zeros({3}));
    }
    meet(context, "end");
  });
}

TEST(Transport, GivenMemoryThatIsSharedInAnotherWay) {
  run_ranks(2, [&](RankContext& context) {
    auto transport = make_transport(context);
    const at::Tensor tied = at::full({4}, 3.0);
    const Dict state{{"tied", List{tied, tied}}, {"apart", List{at::full({4}, 1.0), at::full({4}, 2.0)}}};
    if (context.rank() == 0) {
      transport->send(state, kStep, 1);
      transport->send(state, kStep, 1);
    } else {
      const at::Tensor one = at::zeros({4});
      const at::Tensor shared = at::zeros({4});
      Dict given{{"tied", List{at::zeros({4}), one}}, {"apart", List{shared, shared}}};
      transport->receive_into(given, kStep, 0);
      expect_same(given, state);
      expect_same(one, tied);
      EXPECT_TRUE(given.at("tied").as_list()[1].as_tensor().is_same(one));
      EXPECT_TRUE(given.at("apart").as_list()[0].as_tensor().is_same(shared));
      EXPECT_FALSE(given.at("apart").as_list()[1].as_tensor().is_same(shared));
      // Now everything agrees.
      const Dict before = given;
      transport->receive_into(given, kStep, 0);
      EXPECT_TRUE(given.at("apart").as_list()[1].as_tensor().is_same(before.at("apart").as_list()[1].as_tensor()));
      expect_same(given, state);
    }
    meet(context, "end");
  });
}

TEST(Transport, StrictInPlaceNamesAllThatDoNotAgreeAndChangesNothing) {
  run_ranks(2, [&](RankContext& context) {
    TransportOptions options;
    options.strict_in_place = true;
    auto transport = make_transport(context, options);
    const char* const text =
        "the given state cannot be filled in place, 4 faults:"
        "\n  key 'a.dtype': the given tensor has the dtype float32, what is sent float64"
        "\n  key 'a.sizes': the given tensor has the sizes [4], what is sent [3]"
        "\n  key 'a.new': the given state has no tensor there"
        "\n  key 'old': the given state has it, what is sent does not";
    const Dict state{
        {"a", Dict{{"dtype", at::ones({3}, at::kDouble)}, {"sizes", at::ones({3})}, {"new", at::ones({2})}}},
        {"same", at::ones({2})}};
    if (context.rank() == 0) {
      expect_error(ErrorKind::kShape, std::string("sending the state of step 7 to rank 1: ") + text,
                   [&] { transport->send(state, kStep, 1); });
      transport->send({{"same", at::ones({2})}}, kStep, 1);  // the link still works
    } else {
      Dict given{
          {"a", Dict{{"dtype", at::zeros({3})}, {"sizes", at::zeros({4})}}}, {"same", at::zeros({2})}, {"old", 1}};
      expect_error(ErrorKind::kShape, text, [&] { transport->receive_into(given, kStep, 0); });
      expect_same(given.at("same"), at::zeros({2}));
      EXPECT_TRUE(given.contains("old"));
      Dict small{{"same", given.at("same")}};
      transport->receive_into(small, kStep, 0);
      expect_same(given.at("same"), at::ones({2}));
    }
    meet(context, "end");
  });
}

// An object whose state is what it was made with.
class Held : public Stateful {
 public:
  explicit Held(Dict state) : state(std::move(state)) {}
  Dict state_dict() override { return state; }
  void load_state_dict(const Dict& loaded) override {
    ++loads;
    state = loaded;
  }
  Dict state;
  int loads = 0;
};

TEST(Transport, StatefulTravelsAsItsStateAndIsLoaded) {
  run_ranks(2, [&](RankContext& context) {
    auto transport = make_transport(context);
    auto object = std::make_shared<Held>(Dict{{"weight", at::full({3}, context.rank())}, {"n", context.rank()}});
    if (context.rank() == 0) {
      transport->send({{"model", object}, {"again", object}}, kStep, 1);
      transport->send({{"model", object}}, kStep, 1);
    } else {
      const Dict received = transport->receive(kStep, 0);
      expect_same(received.at("model"), Dict{{"weight", at::full({3}, 0)}, {"n", 0}});
      EXPECT_TRUE(received.at("again").as_dict().at("weight").as_tensor().is_same(
          received.at("model").as_dict().at("weight").as_tensor()));
      const at::Tensor weight = object->state.at("weight").as_tensor();
      Dict given{{"model", object}};
      transport->receive_into(given, kStep, 0);
      EXPECT_EQ(given.at("model").as_stateful(), object);
      EXPECT_EQ(object->loads, 1);
      EXPECT_EQ(object->state.at("n").as_int(), 0);
      expect_same(weight, at::full({3}, 0));  // in place
    }
    meet(context, "end");
  });
}

TEST(Transport, GivenDTensorKeepsItsMesh) {
  run_ranks(4, [&](RankContext& context) {
    auto transport = make_transport(context);
    // Two replicas, of ranks 0, 1 and 2, 3: the second gets the first's parts.
    const int in_replica = context.rank() % 2;
    const auto mesh = std::make_shared<const DeviceMesh>(
        Sizes{2}, context.rank() < 2 ? std::vector<std::int64_t>{0, 1} : std::vector<std::int64_t>{2, 3},
        context.rank());
    const at::Tensor whole = at::arange(12, at::kFloat).reshape({4, 3});
    if (context.rank() < 2) {
      transport->send({{"w", DTensor::distribute(whole, mesh, {Placement::shard(0)})}}, kStep, context.rank() + 2);
    } else {
      Dict given{{"w", DTensor::distribute(at::zeros({4, 3}), mesh, {Placement::shard(0)})}};
      const at::Tensor local = given.at("w").as_dtensor().local();
      transport->receive_into(given, kStep, context.rank() - 2);
      EXPECT_EQ(given.at("w").as_dtensor().mesh_ptr(), mesh);
      EXPECT_TRUE(given.at("w").as_dtensor().local().is_same(local));
      expect_same(local, whole.slice(0, in_replica * 2, in_replica * 2 + 2).clone());
    }
    meet(context, "end");
  });
}

TEST(Transport, AnotherStepIsRefusedOnBothSides) {
  run_ranks(3, [&](RankContext& context) {
    auto transport = make_transport(context);
    const std::string text = "rank 0 sends the state of step 7, rank 1 wants that of step 8";
    const Dict state{{"w", at::full({1000}, 5.0)}};
    if (context.rank() == 0) {
      expect_error(ErrorKind::kState, "sending the state of step 7 to rank 1: " + text,
                   [&] { transport->send(state, 7, {1, 2}); });
      transport->send(state, 8, 1);
    } else if (context.rank() == 1) {
      Dict given{{"w", at::zeros({1000})}};
      expect_error(ErrorKind::kState, text, [&] { transport->receive_into(given, 8, 0); });
      expect_same(given.at("w"), at::zeros({1000}));
      transport->receive_into(given, 8, 0);
      expect_same(given, state);
    } else {
      expect_same(transport->receive(7, 0), state);  // whatever rank 1 says
    }
    meet(context, "end");
  });
}

TEST(Transport, WhatCannotBeSentIsNamedOnBothSides) {
  run_ranks(2, [&](RankContext& context) {
    auto transport = make_transport(context);
    const std::string text =
        "this state cannot be sent, 2 faults:\n  key 'a.meta': a tensor on the meta device\n  key 'sparse': a tensor "
        "that "
        "is not strided";
    if (context.rank() == 0) {
      const Dict state{{"a", Dict{{"meta", at::empty({2}, at::kMeta)}}}, {"sparse", at::eye(3).to_sparse()}};
      expect_error(ErrorKind::kUnsupported, text, [&] { transport->send(state, kStep, 1); });
      transport->send({{"a", 1}}, kStep, 1);
    } else {
      expect_error(ErrorKind::kUnsupported, "receiving the state of step 7 from rank 0: " + text,
                   [&] { transport->receive(kStep, 0); });
      expect_same(transport->receive(kStep, 0), Dict{{"a", 1}});
    }
    meet(context, "end");
  });
}

TEST(Transport, ReceiverThatNeverComesAndANewLink) {
  run_ranks(3, [&](RankContext& context) {
    auto transport = make_transport(context, {}, context.rank() == 0 ? milliseconds(300) : milliseconds(20'000));
    const Dict state{{"w", at::ones({10})}};
    const std::string reason = "rank 0 waited 300 ms: sending the preface of the state of step 7 to rank 1";
    if (context.rank() == 0) {
      expect_error(ErrorKind::kDeadline, reason, [&] { transport->send(state, kStep, 1); });
    } else if (context.rank() == 2) {
      expect_error(ErrorKind::kDeadline, "receiving the preface of the state of step 7 from rank 0: " + reason,
                   [&] { transport->receive(kStep, 0); });
    } else {
      while (!transport->link()->is_broken()) std::this_thread::sleep_for(milliseconds(1));
    }
    expect_error(ErrorKind::kDeadline, reason, [&] { transport->send(state, kStep, (context.rank() + 1) % 3); });
    transport = make_transport(context);
    expect_same(transport->exchange(state, kStep, (context.rank() + 1) % 3, (context.rank() + 2) % 3), state);
    meet(context, "end");
  });
}

TEST(Transport, ReceiverThatStopsInTheMiddle) {
  run_ranks(2, [&](RankContext& context) {
    TransportOptions options;
    options.piece_bytes = 1000;
    auto transport = make_transport(context, options, milliseconds(400));
    if (context.rank() == 0) {
      Dict given{{"model", Dict{{"weight", at::full({100'000}, 2.0)}}}};
      expect_error(ErrorKind::kDeadline, "sending model.weight to rank 1", [&] { transport->send(given, kStep, 1); });
    } else {
      // Answers as a receiver would, and takes no piece.
      PeerLink& link = *transport->link();
      const std::uint32_t tag = TransportOptions().first_tag;
      auto preface = std::make_shared<Bytes>(kTransportFixedBytes);
      link.receive(0, tag, *preface, preface, "the preface").wait();
      auto answer = encode_answer(std::nullopt);
      link.send(0, tag + 4, *answer, answer, "an answer").wait();
      auto head = std::make_shared<Bytes>(decode_preface(*preface).head_bytes);
      link.receive(0, tag + 1, *head, head, "the head").wait();
      link.send(0, tag + 4, *answer, answer, "an answer").wait();
      while (!link.is_broken()) std::this_thread::sleep_for(milliseconds(1));
      EXPECT_EQ(link.broken_reason(), "rank 0 waited 400 ms: sending model.weight to rank 1");
    }
    meet(context, "end");
  });
}

TEST(Transport, DamagedBytesNameTheKey) {
  // Rank 0 plays a sender whose bytes change on the way.
  run_ranks(2, [&](RankContext& context) {
    auto transport = make_transport(context);
    const Dict state{{"good", at::full({100'000}, 1.0)}, {"model", Dict{{"bad", at::full({100'000}, 2.0)}}}};
    if (context.rank() == 1) {
      Dict given{{"good", at::zeros({100'000})}, {"model", Dict{{"bad", at::zeros({100'000})}}}};
      expect_error(
          ErrorKind::kCorruptData,
          "receiving the state of step 7 from rank 0: key 'model.bad': the bytes have another CRC-32 than those "
          "that were sent; tensors of the given state have been overwritten in part",
          [&] { transport->receive_into(given, kStep, 0); });
      EXPECT_FALSE(transport->link()->is_broken());
      meet(context, "end");
      return;
    }
    PeerLink& link = *transport->link();
    const std::uint32_t tag = TransportOptions().first_tag;
    const auto send = [&](std::uint32_t which, const std::shared_ptr<Bytes>& bytes) {
      link.send(1, tag + which, *bytes, bytes, "a message").wait();
    };
    const auto answer = [&] {
      auto bytes = std::make_shared<Bytes>(kTransportFixedBytes);
      link.receive(1, tag + 4, *bytes, bytes, "an answer").wait();
      return decode_answer(*bytes);
    };
    OutgoingState outgoing = describe_state(state);
    send(0, encode_preface({std::nullopt, kStep, outgoing.head.size(), crc32_of(outgoing.head), 1'000'000}));
    EXPECT_FALSE(answer());
    send(1, std::make_shared<Bytes>(outgoing.head));
    EXPECT_FALSE(answer());
    std::vector<TransportBlock> blocks;
    for (const char* key : {"good", "bad"}) {
      const at::Tensor tensor =
          key[0] == 'g' ? state.at("good").as_tensor() : state.at("model").as_dict().at("bad").as_tensor();
      blocks.push_back({tensor.view(at::kByte), key});
      auto bytes = std::make_shared<Bytes>(tensor.nbytes());
      std::copy_n(static_cast<const std::uint8_t*>(tensor.const_data_ptr()), tensor.nbytes(), bytes->data());
      blocks.back().sum = crc32_of(*bytes);
      if (key[0] == 'b') (*bytes)[399'999] ^= 1;
      send(2, bytes);
    }
    send(3, std::make_shared<Bytes>(encode_sums(blocks)));
    const auto failure = answer();
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->kind, ErrorKind::kCorruptData);
    meet(context, "end");
  });
}

// What a receiver makes of a head.
void take(Bytes head, const IncomingOptions& options = {ParseLimits(), std::int64_t{1} << 30, false, c10::kCPU}) {
  IncomingState(std::move(head), nullptr, options).finish();
}

TEST(TransportHead, EveryCutAndEveryFlippedBitIsCorruptDataOrAnotherState) {
  const Dict state = {{"a", at::arange(12).reshape({3, 4})},
                      {"q", at::quantize_per_channel(at::randn({2, 2}), at::ones({2}, at::kDouble),
                                                     at::zeros({2}, at::kLong), 0, at::kQInt8)},
                      {"d", DTensor::distribute(at::ones({4}), DeviceMesh::make({2}, 0), {Placement::shard(0)})},
                      {"s", ShardedTensor({4}, at::kFloat, {{at::ones({2}), {1}}})},
                      {"l", List{1, 2.5, "text", Bytes{1}, None(), true, Tuple{1}}},
                      {"o", Opaque{std::make_shared<const Bytes>(encode_object_item(List{1})), "x"}}};
  const Bytes head = describe_state(state).head;
  take(head);
  for (std::size_t size = 0; size < head.size(); ++size) {
    expect_error(ErrorKind::kCorruptData, "",
                 [&] { take(Bytes(head.begin(), head.begin() + static_cast<std::ptrdiff_t>(size))); });
  }
  Bytes longer = head;
  longer.push_back(0);
  expect_error(ErrorKind::kCorruptData, "", [&] { take(longer); });
  std::size_t refused = 0;
  for (std::size_t bit = 0; bit < head.size() * 8; ++bit) {
    Bytes bad = head;
    bad[bit / 8] ^= static_cast<std::uint8_t>(1u << (bit % 8));
    try {
      take(bad);
    } catch (const Error& error) {
      ++refused;
      EXPECT_TRUE(error.kind() == ErrorKind::kCorruptData || error.kind() == ErrorKind::kUnsupported)
          << "bit " << bit << ": " << error.what_without_backtrace();
    }
  }
  EXPECT_GT(refused, head.size() * 4);
}

TEST(TransportHead, LimitsHold) {
  IncomingOptions options{ParseLimits(), 1000, false, c10::kCPU};
  take(describe_state({{"a", at::ones({250})}}).head, options);
  expect_error(ErrorKind::kCorruptData, "1000 are allowed",
               [&] { take(describe_state({{"a", at::ones({251})}}).head, options); });
  expect_error(ErrorKind::kCorruptData, "1000 are allowed",
               [&] { take(describe_state({{"a", at::ones({200})}, {"b", at::ones({51})}}).head, options); });
  options.limits.max_values = 10;
  expect_error(ErrorKind::kCorruptData, "more than 10 values",
               [&] { take(describe_state({{"a", List(10)}}).head, options); });
  options.limits.max_depth = 5;
  expect_error(ErrorKind::kCorruptData, "more than 5 deep",
               [&] { take(describe_state({{"a", List{List{List{List{List{1}}}}}}}).head, options); });
  // A count that the bytes cannot hold, before anything is allocated for it.
  ByteWriter out;
  out.u64(std::uint64_t{1} << 60);
  const Bytes huge = std::move(out).take();
  expect_error(ErrorKind::kCorruptData, "", [&] { take(huge); });
}

TEST(TransportHead, ItemThatWouldRunCodeIsRefused) {
  // torch.save's form of a list with os.system in it cannot be made here; a damaged item is refused by the same reader.
  Bytes item = encode_object_item(List{1, 2, 3});
  item[item.size() / 2] ^= 0x40;
  const Opaque opaque{std::make_shared<const Bytes>(item), "list"};
  EXPECT_THROW(take(describe_state({{"o", opaque}}).head), Error);
}

TEST(Transport, BrokenHeadIsRefusedAndTheSenderIsTold) {
  run_ranks(2, [&](RankContext& context) {
    auto transport = make_transport(context);
    if (context.rank() == 1) {
      expect_error(ErrorKind::kCorruptData, "the head has another CRC-32", [&] { transport->receive(kStep, 0); });
      expect_error(ErrorKind::kCorruptData,
                   "receiving the state of step 7 from rank 0: ", [&] { transport->receive(kStep, 0); });
      expect_error(ErrorKind::kCorruptData, "a head of 9223372036854775807 bytes",
                   [&] { transport->receive(kStep, 0); });
      expect_error(ErrorKind::kCorruptData, "what came is no state", [&] { transport->receive(kStep, 0); });
      expect_same(transport->receive(kStep, 0), Dict{{"a", 1}});
      meet(context, "end");
      return;
    }
    PeerLink& link = *transport->link();
    const std::uint32_t tag = TransportOptions().first_tag;
    const auto refused = [&](const std::shared_ptr<Bytes>& preface, const std::shared_ptr<Bytes>& head) {
      link.send(1, tag, *preface, preface, "a preface").wait();
      for (int answers = head ? 2 : 1; answers > 0; --answers) {
        auto bytes = std::make_shared<Bytes>(kTransportFixedBytes);
        link.receive(1, tag + 4, *bytes, bytes, "an answer").wait();
        const auto failure = decode_answer(*bytes);
        EXPECT_EQ(failure.has_value(), answers == 1);
        if (failure) {
          EXPECT_EQ(failure->kind, ErrorKind::kCorruptData);
        }
        if (answers == 2) link.send(1, tag + 1, *head, head, "a head").wait();
      }
    };
    auto head = std::make_shared<Bytes>(describe_state({{"a", at::ones({3})}}).head);
    refused(encode_preface({std::nullopt, kStep, head->size(), crc32_of(*head) + 1, 1000}), head);
    head->back() ^= 0xff;
    refused(encode_preface({std::nullopt, kStep, head->size(), crc32_of(*head), 1000}), head);
    refused(encode_preface({std::nullopt, kStep, std::numeric_limits<std::int64_t>::max(), 0, 1000}), nullptr);
    refused(std::make_shared<Bytes>(kTransportFixedBytes), nullptr);
    transport->send({{"a", 1}}, kStep, 1);
    meet(context, "end");
  });
}

TEST(Transport, ThreadsTalkToSeveralRanksAtOnce) {
  constexpr int kRanks = 4;
  const auto state_of = [](int from, int to) { return Dict{{"w", at::full({50'000}, from * 10 + to)}, {"to", to}}; };
  run_ranks(kRanks, [&](RankContext& context) {
    TransportOptions options;
    options.piece_bytes = 30'000;
    auto transport = make_transport(context, options);
    std::vector<std::thread> threads;
    for (int other = 0; other < kRanks; ++other) {
      if (other == context.rank()) continue;
      threads.emplace_back([&, other] {
        for (int turn = 0; turn < 3; ++turn) transport->send(state_of(context.rank(), other), turn, other);
      });
      threads.emplace_back([&, other] {
        for (int turn = 0; turn < 3; ++turn)
          expect_same(transport->receive(turn, other), state_of(other, context.rank()));
      });
    }
    for (auto& thread : threads) thread.join();
    meet(context, "end");
  });
}

TEST(Transport, WrongArgumentsAreRefused) {
  run_ranks(2, [&](RankContext& context) {
    auto transport = make_transport(context);
    const int other = 1 - context.rank();
    expect_error(ErrorKind::kInvalidArgument, "each once", [&] { transport->send({}, 1, {other, other}); });
    expect_error(ErrorKind::kInvalidArgument, "each once", [&] { transport->send({}, 1, std::vector<int>{}); });
    expect_error(ErrorKind::kInvalidArgument, "this is rank", [&] { transport->send({}, 1, context.rank()); });
    expect_error(ErrorKind::kInvalidArgument, "this is rank", [&] { transport->receive(1, 2); });
    TransportOptions options;
    options.piece_bytes = 0;
    expect_error(ErrorKind::kInvalidArgument, "must be positive",
                 [&] { ProcessGroupTransport(transport->link(), options); });
    meet(context, "end");
  });
}

}  // namespace
}  // namespace dcp::test
