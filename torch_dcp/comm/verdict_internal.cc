#include "torch_dcp/comm/verdict_internal.h"

#include <algorithm>
#include <utility>

#include "torch_dcp/base/byte_codec.h"
#include "torch_dcp/comm/envelope_internal.h"

namespace dcp {
namespace {

template <typename Enum>
Enum read_enum(ByteReader& reader, Enum last) {
  const std::uint8_t value = reader.u8();
  DCP_CHECK(value <= static_cast<std::uint8_t>(last), kCorruptData, "a report holds the unknown number ",
            static_cast<int>(value));
  return static_cast<Enum>(value);
}

bool is_busy(const Position& position) { return position.phase != Phase::kWaiting; }

std::string describe(const Position& position) {
  switch (position.phase) {
    case Phase::kBetweenSteps:
      return position.label.empty() ? std::string("before its first step")
                                    : c10::str("between steps, after '", position.label, "'");
    case Phase::kLocal:
      return c10::str("in its own part of step '", position.label, "'");
    case Phase::kWaiting:
      return c10::str("waiting in step '", position.label, "'");
    case Phase::kGlobal:
      return c10::str("merging the ranks' results of step '", position.label, "'");
    case Phase::kReceive:
      return c10::str("taking in its answer of step '", position.label, "'");
  }
  return "nowhere known";
}

class Judge {
 public:
  Judge(const std::vector<RankSign>& signs, const Position& position, std::chrono::milliseconds deadline,
        std::chrono::milliseconds grace)
      : signs_(signs), position_(position), deadline_(deadline), grace_(grace) {
    for (const RankSign& sign : signs_) {
      timed_out_ =
          timed_out_ || (sign.report && sign.report->observed == Observed::kTimeout && is_of_step(*sign.report));
    }
  }

  Decision run() {
    for (std::size_t rank = 0; rank < signs_.size(); ++rank) name_failed(static_cast<int>(rank), signs_[rank]);
    if (timed_out_) name_late();
    if (failures_.empty()) name_observers();
    std::stable_sort(failures_.begin(), failures_.end(),
                     [](const RankFailure& a, const RankFailure& b) { return a.rank < b.rank; });
    return {false, position_.label, std::move(failures_)};
  }

 private:
  void add(int rank, ErrorKind kind, std::string message) {
    failures_.push_back({rank, kind, std::move(message), DCP_WHERE});
  }

  /// A wait for the last word of an earlier step that ran out ends the group too, and says nothing about who is late
  /// now.
  bool is_of_step(const Report& report) const { return report.position.step == position_.step; }

  static bool is_late(const Report& report) {
    return is_busy(report.position) && report.observed != Observed::kOwn && !report.early;
  }

  void name_failed(int rank, const RankSign& sign) {
    if (sign.left) {
      add(rank, ErrorKind::kComm, c10::str("rank ", rank, " is gone: its communicator was destroyed"));
    } else if (sign.report && sign.report->observed == Observed::kOwn) {
      failures_.push_back(sign.report->failure);
    } else if (sign.report && sign.report->early && is_of_step(*sign.report)) {
      failures_.push_back(*sign.report->early);
    } else if (!sign.report && !timed_out_) {
      add(rank, ErrorKind::kComm,
          c10::str("rank ", rank, " is gone: it gave no sign of life in the ", grace_.count(),
                   " ms after the group's connections broke"));
    }
  }

  void name_late() {
    for (std::size_t rank = 0; rank < signs_.size(); ++rank) {
      const RankSign& sign = signs_[rank];
      if (sign.left || (sign.report && !is_late(*sign.report))) continue;
      add(static_cast<int>(rank), ErrorKind::kDeadline,
          c10::str("rank ", rank, " did not come to the exchange of step '", position_.label,
                   "' within its deadline of ", deadline_.count(), " ms; ",
                   sign.report ? c10::str("it was ", describe(sign.report->position))
                               : std::string("it gives no sign of life")));
    }
  }

  void name_observers() {
    for (const RankSign& sign : signs_) {
      if (!sign.report) continue;
      if (sign.report->observed == Observed::kTimeout || sign.report->observed == Observed::kLost) {
        failures_.push_back(sign.report->failure);
      }
    }
    if (failures_.empty()) {
      add(-1, ErrorKind::kComm, "the group's exchange was ended and no rank said why");
    }
  }

  const std::vector<RankSign>& signs_;
  const Position& position_;
  std::chrono::milliseconds deadline_;
  std::chrono::milliseconds grace_;
  bool timed_out_ = false;
  std::vector<RankFailure> failures_;
};

}  // namespace

Bytes encode_report(const Report& report) {
  ByteWriter writer;
  writer.i64(report.position.generation);
  writer.i64(report.position.step);
  writer.text(report.position.label);
  writer.u8(static_cast<std::uint8_t>(report.position.phase));
  writer.u8(static_cast<std::uint8_t>(report.observed));
  std::vector<RankFailure> failures = {report.failure};
  if (report.early) failures.push_back(*report.early);
  encode_failures(writer, failures);
  return std::move(writer).take();
}

Report decode_report(const Bytes& bytes) {
  ByteReader reader(bytes);
  Report report;
  report.position.generation = reader.i64();
  report.position.step = reader.i64();
  report.position.label = reader.text();
  report.position.phase = read_enum(reader, Phase::kReceive);
  report.observed = read_enum(reader, Observed::kFollowed);
  std::vector<RankFailure> failures = decode_failures(reader);
  DCP_CHECK(failures.size() == 1 || failures.size() == 2, kCorruptData, "a report holds ", failures.size(),
            " failures instead of one or two");
  report.failure = std::move(failures[0]);
  if (failures.size() == 2) report.early = std::move(failures[1]);
  reader.expect_end();
  return report;
}

Bytes encode_decision(const Decision& decision) {
  ByteWriter writer;
  writer.boolean(decision.complete);
  writer.text(decision.label);
  encode_failures(writer, decision.failures);
  return std::move(writer).take();
}

Decision decode_decision(const Bytes& bytes) {
  ByteReader reader(bytes);
  Decision decision;
  decision.complete = reader.boolean();
  decision.label = reader.text();
  decision.failures = decode_failures(reader);
  reader.expect_end();
  return decision;
}

bool is_settled(const RankSign& sign) {
  if (sign.left) return true;
  if (!sign.report) return false;
  return sign.report->observed != Observed::kNothing || is_busy(sign.report->position);
}

Decision judge(const std::vector<RankSign>& signs, const Position& position, std::chrono::milliseconds deadline,
               std::chrono::milliseconds grace) {
  return Judge(signs, position, deadline, grace).run();
}

}  // namespace dcp
