#include "torch_dcp/pickle/reader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <string>

#include "torch_dcp/pickle/arena_internal.h"
#include "torch_dcp/pickle/cursor_internal.h"
#include "torch_dcp/pickle/integer_internal.h"
#include "torch_dcp/pickle/memo_internal.h"
#include "torch_dcp/pickle/opcodes_internal.h"
#include "torch_dcp/pickle/utf8_internal.h"

namespace dcp::pickle {
namespace {

constexpr int kLowestProtocol = 2;
constexpr int kHighestProtocol = 5;

/// The pickle machine: a stack, marks into it and a memo. Values that cannot change and
/// have no parts (None, bools, small ints, the empty tuple) are made once and shared.
class Parser {
 public:
  Parser(ByteSpan bytes, const ParseLimits& limits)
      : limits_(limits), cursor_(bytes), arena_(pickle_.chunks, bytes.size()) {}

  Pickle run(std::size_t* consumed);

 private:
  void read_protocol();
  void execute(Opcode opcode);
  void execute_rare(Opcode opcode);
  void finish(std::size_t* consumed);

  // The stack. What lies below the last mark is out of reach.
  std::size_t fence() const { return marks_.empty() ? 0 : marks_.back(); }
  void need(std::size_t count) const {
    if (C10_UNLIKELY(stack_.size() - fence() < count)) {
      cursor_.fail("it needs ", count, " values, the stack has ", stack_.size() - fence());
    }
  }
  Node* pop() {
    need(1);
    Node* value = stack_.back();
    stack_.pop_back();
    return value;
  }
  std::span<const Ref> last(std::size_t count) {
    need(count);
    return {stack_.data() + stack_.size() - count, count};
  }
  /// Takes the last mark away; the values above it are still on the stack, and how many there are is returned.
  std::size_t pop_mark();
  void pop_value_or_mark();
  void drop(std::size_t count) { stack_.resize(stack_.size() - count); }

  // New values.
  void count_value() {
    if (C10_UNLIKELY(++value_count_ > limits_.max_values)) {
      cursor_.fail("more than ", limits_.max_values, " values");
    }
  }
  template <typename T>
  T* make(NodeKind kind) {
    count_value();
    return arena_.make_node<T>(kind);
  }
  void push(Node* value) { stack_.push_back(value); }
  void push_shared(NumberNode*& slot, NodeKind kind, std::int64_t integer);
  void push_empty_tuple();
  void push_bool(bool value) { push_shared(bools_[value], NodeKind::kBool, value); }
  void push_integer(std::int64_t value);
  void push_long(std::int64_t size);
  void push_real() {
    auto* node = make<NumberNode>(NodeKind::kFloat);
    node->real = std::bit_cast<double>(__builtin_bswap64(cursor_.number<std::uint64_t>()));
    push(node);
  }
  void push_string(NodeKind kind, std::string_view text) {
    auto* node = make<TextNode>(kind);
    node->text = arena_.copy(text);
    push(node);
  }
  void push_text(std::uint64_t size);
  void push_old_text(std::int64_t size);
  void push_bytes(NodeKind kind, std::uint64_t size);
  template <typename T>
  void push_container(NodeKind kind) {
    auto* node = make<T>(kind);
    node->depth = 1;
    push(node);
  }
  void push_sequence(NodeKind kind, std::size_t count);
  void push_global();
  void push_stack_global();
  void push_call(bool is_new_object);
  std::string_view take_string(std::string_view what, std::uint64_t size);
  std::string_view checked_line();

  // Changes of values that are there.
  void append(std::size_t count);
  void set_items(std::size_t count);
  void add_items(std::size_t count);
  void build();
  Node* below(std::size_t count) {
    need(count + 1);
    return stack_[stack_.size() - count - 1];
  }
  void nest(Node* outer, Ref inner);
  void nest(Node* outer, std::span<const Ref> inner) {
    for (Ref node : inner) nest(outer, node);
  }

  void memoize(std::uint32_t number);
  void recall(std::uint32_t number);

  const ParseLimits& limits_;
  Cursor cursor_;
  Pickle pickle_;
  Arena arena_;
  Memo memo_;
  std::vector<Node*> stack_;
  std::vector<std::size_t> marks_;
  std::size_t value_count_ = 0;
  NumberNode* none_ = nullptr;
  SequenceNode* empty_tuple_ = nullptr;
  std::array<NumberNode*, 2> bools_{};
  std::array<NumberNode*, 256> small_integers_{};
};

Pickle Parser::run(std::size_t* consumed) {
  read_protocol();
  for (Opcode opcode = cursor_.next_opcode(); opcode != Opcode::kStop; opcode = cursor_.next_opcode()) {
    execute(opcode);
  }
  finish(consumed);
  return std::move(pickle_);
}

void Parser::read_protocol() {
  if (cursor_.next_opcode() != Opcode::kProto) cursor_.fail("the data are no pickle of protocol 2 or later");
  const int protocol = cursor_.number<std::uint8_t>();
  if (protocol < kLowestProtocol || protocol > kHighestProtocol) {
    cursor_.refuse("protocol ", protocol, " is not read, only ", kLowestProtocol, " to ", kHighestProtocol);
  }
}

void Parser::finish(std::size_t* consumed) {
  if (!marks_.empty() || stack_.size() != 1) {
    cursor_.fail("one value must be left at the end, there are ", stack_.size(), " and ", marks_.size(), " marks");
  }
  if (cursor_.is_inside_frame()) cursor_.fail("the last frame reaches beyond the end");
  if (consumed != nullptr) {
    *consumed = cursor_.position();
  } else if (cursor_.remaining() != 0) {
    cursor_.fail(cursor_.remaining(), " bytes follow the end");
  }
  pickle_.root = stack_.back();
}

// clang-format off: one line an opcode.
void Parser::execute(Opcode opcode) {
  switch (opcode) {
    case Opcode::kMark: return marks_.push_back(stack_.size());
    case Opcode::kNone: return push_shared(none_, NodeKind::kNone, 0);
    case Opcode::kNewTrue: return push_bool(true);
    case Opcode::kNewFalse: return push_bool(false);
    case Opcode::kBinInt1: return push_integer(cursor_.number<std::uint8_t>());
    case Opcode::kBinInt2: return push_integer(cursor_.number<std::uint16_t>());
    case Opcode::kBinInt: return push_integer(static_cast<std::int32_t>(cursor_.number<std::uint32_t>()));
    case Opcode::kLong1: return push_long(cursor_.number<std::uint8_t>());
    case Opcode::kBinFloat: return push_real();
    case Opcode::kShortBinUnicode: return push_text(cursor_.number<std::uint8_t>());
    case Opcode::kBinUnicode: return push_text(cursor_.number<std::uint32_t>());
    case Opcode::kEmptyTuple: return push_empty_tuple();
    case Opcode::kTuple1: return push_sequence(NodeKind::kTuple, 1);
    case Opcode::kTuple2: return push_sequence(NodeKind::kTuple, 2);
    case Opcode::kTuple3: return push_sequence(NodeKind::kTuple, 3);
    case Opcode::kTuple: return push_sequence(NodeKind::kTuple, pop_mark());
    case Opcode::kEmptyList: return push_container<SequenceNode>(NodeKind::kList);
    case Opcode::kAppend: return append(1);
    case Opcode::kAppends: return append(pop_mark());
    case Opcode::kEmptyDict: return push_container<DictNode>(NodeKind::kDict);
    case Opcode::kSetItem: return set_items(2);
    case Opcode::kSetItems: return set_items(pop_mark());
    case Opcode::kGlobal: return push_global();
    case Opcode::kStackGlobal: return push_stack_global();
    case Opcode::kReduce: return push_call(false);
    case Opcode::kNewObj: return push_call(true);
    case Opcode::kBuild: return build();
    case Opcode::kBinPersId: return push_sequence(NodeKind::kPersistentId, 1);
    case Opcode::kMemoize: return memoize(static_cast<std::uint32_t>(memo_.size()));
    case Opcode::kBinPut: return memoize(cursor_.number<std::uint8_t>());
    case Opcode::kLongBinPut: return memoize(cursor_.number<std::uint32_t>());
    case Opcode::kBinGet: return recall(cursor_.number<std::uint8_t>());
    case Opcode::kLongBinGet: return recall(cursor_.number<std::uint32_t>());
    case Opcode::kFrame: return cursor_.begin_frame(cursor_.number<std::uint64_t>());
    default:
      return execute_rare(opcode);
  }
}

void Parser::execute_rare(Opcode opcode) {
  switch (opcode) {
    case Opcode::kPop: return pop_value_or_mark();
    case Opcode::kPopMark: return drop(pop_mark());
    case Opcode::kLong4: return push_long(static_cast<std::int32_t>(cursor_.number<std::uint32_t>()));
    case Opcode::kBinUnicode8: return push_text(cursor_.number<std::uint64_t>());
    case Opcode::kShortBinString: return push_old_text(cursor_.number<std::uint8_t>());
    case Opcode::kBinString: return push_old_text(static_cast<std::int32_t>(cursor_.number<std::uint32_t>()));
    case Opcode::kShortBinBytes: return push_bytes(NodeKind::kBytes, cursor_.number<std::uint8_t>());
    case Opcode::kBinBytes: return push_bytes(NodeKind::kBytes, cursor_.number<std::uint32_t>());
    case Opcode::kBinBytes8: return push_bytes(NodeKind::kBytes, cursor_.number<std::uint64_t>());
    case Opcode::kByteArray8: return push_bytes(NodeKind::kByteArray, cursor_.number<std::uint64_t>());
    case Opcode::kEmptySet: return push_container<SequenceNode>(NodeKind::kSet);
    case Opcode::kAddItems: return add_items(pop_mark());
    case Opcode::kFrozenSet: return push_sequence(NodeKind::kFrozenSet, pop_mark());
    default:
      break;
  }
  const OpcodeInfo* info = find_opcode(static_cast<std::uint8_t>(opcode));
  if (info == nullptr) cursor_.fail("there is no opcode ", static_cast<int>(opcode));
  if (info->is_read) cursor_.fail(info->name, " in the middle of a pickle");
  cursor_.refuse("opcode ", info->name, " is not read");
}

// clang-format on

std::size_t Parser::pop_mark() {
  if (marks_.empty()) cursor_.fail("there is no mark on the stack");
  const std::size_t count = stack_.size() - marks_.back();
  marks_.pop_back();
  return count;
}

void Parser::pop_value_or_mark() {
  // As in Python, a mark without values above it counts as one.
  if (!marks_.empty() && marks_.back() == stack_.size()) {
    marks_.pop_back();
  } else {
    pop();
  }
}

void Parser::push_shared(NumberNode*& slot, NodeKind kind, std::int64_t integer) {
  count_value();
  if (slot == nullptr) {
    slot = arena_.make_node<NumberNode>(kind);
    slot->integer = integer;
  }
  push(slot);
}

void Parser::push_empty_tuple() {
  count_value();
  if (empty_tuple_ == nullptr) {
    empty_tuple_ = arena_.make_node<SequenceNode>(NodeKind::kTuple);
    empty_tuple_->depth = 1;
  }
  push(empty_tuple_);
}

void Parser::push_integer(std::int64_t value) {
  if (value >= 0 && value < static_cast<std::int64_t>(small_integers_.size())) {
    return push_shared(small_integers_[static_cast<std::size_t>(value)], NodeKind::kInt, value);
  }
  auto* node = make<NumberNode>(NodeKind::kInt);
  node->integer = value;
  push(node);
}

void Parser::push_long(std::int64_t size) {
  if (size < 0) cursor_.fail("an int of ", size, " bytes");
  if (static_cast<std::size_t>(size) > limits_.max_integer_bytes) {
    cursor_.fail("an int of ", size, " bytes, more than ", limits_.max_integer_bytes);
  }
  const ByteSpan bytes = cursor_.take(static_cast<std::uint64_t>(size));
  if (const auto value = integer_from_bytes(bytes)) return push_integer(*value);
  push_string(NodeKind::kBigInt, decimal_from_bytes(bytes));
}

std::string_view Parser::take_string(std::string_view what, std::uint64_t size) {
  const std::uint64_t most =
      std::min<std::uint64_t>(limits_.max_string_bytes, std::numeric_limits<std::uint32_t>::max());
  if (size > most) cursor_.fail("a ", what, " of ", size, " bytes, more than ", most);
  return as_text(cursor_.take(size));
}

void Parser::push_text(std::uint64_t size) {
  const std::string_view text = take_string("text", size);
  const std::size_t bad = find_bad_utf8(text);
  if (bad != text.size()) cursor_.fail("byte ", bad, " of a text of ", size, " is not UTF-8");
  push_string(NodeKind::kText, text);
}

void Parser::push_old_text(std::int64_t size) {
  if (size < 0) cursor_.fail("a text of ", size, " bytes");
  const std::string_view text = take_string("text", static_cast<std::uint64_t>(size));
  // A str of Python 2 does not say what it encodes.
  if (!is_ascii(text)) cursor_.refuse("a Python 2 str that is not ASCII is not read");
  push_string(NodeKind::kText, text);
}

void Parser::push_bytes(NodeKind kind, std::uint64_t size) { push_string(kind, take_string("bytes value", size)); }

void Parser::push_sequence(NodeKind kind, std::size_t count) {
  const std::span<const Ref> values = last(count);
  auto* node = make<SequenceNode>(kind);
  node->depth = 1;
  arena_.append(node->items, values);
  nest(node, values);
  drop(count);
  push(node);
}

std::string_view Parser::checked_line() {
  const std::string_view line = cursor_.line();
  if (line.size() > std::min<std::size_t>(limits_.max_string_bytes, std::numeric_limits<std::uint32_t>::max())) {
    cursor_.fail("a name of ", line.size(), " bytes");
  }
  if (!is_utf8(line)) cursor_.fail("a name that is not UTF-8");
  return line;
}

void Parser::push_global() {
  const std::string_view module = checked_line();
  const std::string_view name = checked_line();
  auto* node = make<GlobalNode>(NodeKind::kGlobal);
  node->module = arena_.copy(module);
  node->name = arena_.copy(name);
  push(node);
}

void Parser::push_stack_global() {
  const std::span<const Ref> names = last(2);
  if (names[0]->kind != NodeKind::kText || names[1]->kind != NodeKind::kText) {
    cursor_.fail("a global named by a ", node_kind_name(names[0]->kind), " and a ", node_kind_name(names[1]->kind));
  }
  auto* node = make<GlobalNode>(NodeKind::kGlobal);
  node->module = names[0]->text();
  node->name = names[1]->text();
  drop(2);
  push(node);
}

void Parser::push_call(bool is_new_object) {
  const std::span<const Ref> values = last(2);
  const Ref callee = values[0];
  const Ref arguments = values[1];
  // What a call returns may be called in its turn, as with functools.partial.
  const bool is_callable = callee->kind == NodeKind::kGlobal || (!is_new_object && callee->kind == NodeKind::kCall);
  if (!is_callable) cursor_.fail("a call of a ", node_kind_name(callee->kind));
  if (arguments->kind != NodeKind::kTuple) cursor_.fail("a call with a ", node_kind_name(arguments->kind));
  auto* node = make<CallNode>(NodeKind::kCall);
  node->is_new_object = is_new_object;
  node->callee = callee;
  // Tuples do not change, so theirs can be shared.
  node->items = arguments->items();
  nest(node, values);
  drop(2);
  push(node);
}

void Parser::append(std::size_t count) {
  Node* list = below(count);
  const std::span<const Ref> values = last(count);
  if (list->kind == NodeKind::kList) {
    arena_.append(static_cast<SequenceNode*>(list)->items, values);
  } else if (list->kind == NodeKind::kCall) {
    arena_.append(static_cast<CallNode*>(list)->appended, values);
  } else {
    cursor_.fail("it appends to a ", node_kind_name(list->kind));
  }
  nest(list, values);
  drop(count);
}

void Parser::set_items(std::size_t count) {
  Node* dict = below(count);
  if (count % 2 != 0) cursor_.fail("a key without a value");
  if (dict->kind != NodeKind::kDict && dict->kind != NodeKind::kCall) {
    cursor_.fail("it sets items of a ", node_kind_name(dict->kind));
  }
  const std::span<const Ref> values = last(count);
  const bool is_dict = dict->kind == NodeKind::kDict;
  arena_.append_pairs(is_dict ? static_cast<DictNode*>(dict)->entries : static_cast<CallNode*>(dict)->entries, values);
  nest(dict, values);
  drop(count);
}

void Parser::add_items(std::size_t count) {
  Node* set = below(count);
  if (set->kind != NodeKind::kSet) cursor_.fail("it adds items to a ", node_kind_name(set->kind));
  const std::span<const Ref> values = last(count);
  arena_.append(static_cast<SequenceNode*>(set)->items, values);
  nest(set, values);
  drop(count);
}

void Parser::build() {
  Node* target = below(1);
  const Ref state = last(1)[0];
  if (target->kind != NodeKind::kCall) cursor_.fail("it gives a state to a ", node_kind_name(target->kind));
  auto* object = static_cast<CallNode*>(target);
  if (object->state != nullptr) cursor_.fail("it gives a second state to an object");
  object->state = state;
  nest(object, state);
  drop(1);
}

void Parser::nest(Node* outer, Ref inner) {
  if (inner->depth < outer->depth) return;
  outer->depth = inner->depth + 1;
  if (outer->depth > limits_.max_depth) cursor_.fail("values are nested deeper than ", limits_.max_depth);
}

void Parser::memoize(std::uint32_t number) {
  need(1);
  // No pickler leaves numbers out, so a number is as good as a count.
  if (number >= limits_.max_memo_entries) {
    cursor_.fail("memo number ", number, ", at most ", limits_.max_memo_entries, " values are kept");
  }
  memo_.set(number, stack_.back());
}

void Parser::recall(std::uint32_t number) {
  Node* value = memo_.get(number);
  if (value == nullptr) cursor_.fail("memo number ", number, " was never stored");
  push(value);
}

}  // namespace

Pickle parse(ByteSpan bytes, const ParseLimits& limits, std::size_t* consumed) {
  return Parser(bytes, limits).run(consumed);
}

}  // namespace dcp::pickle
