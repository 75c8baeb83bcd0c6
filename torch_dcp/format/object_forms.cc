#include <algorithm>
#include <array>

#include "torch_dcp/base/error.h"
#include "torch_dcp/format/object_forms_internal.h"
#include "torch_dcp/format/tensor_pickle_internal.h"
#include "torch_dcp/pickle/walk.h"
#include "torch_dcp/tensor/dtype.h"

namespace dcp::object_forms {
namespace {

using pickle::NodeKind;
using pickle::Ref;

constexpr std::string_view kBuiltins = "builtins";
constexpr std::string_view kOldBuiltins = "__builtin__";

/// Packages with nothing in them that a state dict has a use for, and with functions that run code.
constexpr std::array<std::string_view, 32> kRefusedPackages = {"_pickle",
                                                               "_posixsubprocess",
                                                               "asyncio",
                                                               "bdb",
                                                               "cPickle",
                                                               "code",
                                                               "codeop",
                                                               "commands",
                                                               "ctypes",
                                                               "importlib",
                                                               "imp",
                                                               "marshal",
                                                               "multiprocessing",
                                                               "nt",
                                                               "os",
                                                               "pdb",
                                                               "pickle",
                                                               "pip",
                                                               "pkgutil",
                                                               "posix",
                                                               "profile",
                                                               "pty",
                                                               "pydoc",
                                                               "runpy",
                                                               "shutil",
                                                               "signal",
                                                               "socket",
                                                               "subprocess",
                                                               "sys",
                                                               "timeit",
                                                               "trace",
                                                               "webbrowser"};

constexpr std::array<std::string_view, 18> kRefusedBuiltins = {
    "__import__", "apply", "breakpoint", "compile", "delattr", "dir",    "eval", "exec",    "execfile",
    "exit",       "file",  "getattr",    "globals", "input",   "locals", "open", "setattr", "vars"};

template <std::size_t N>
bool is_one_of(std::string_view name, const std::array<std::string_view, N>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_builtins(std::string_view module) { return module == kBuiltins || module == kOldBuiltins; }

std::string_view first_part(std::string_view dotted) { return dotted.substr(0, dotted.find('.')); }

/// Whether a dotted name, which Python follows attribute by attribute, passes through a refused module:
/// `torch.serialization` `os.system`.
bool passes_through_refused(std::string_view name) {
  for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.')) {
    const std::string_view part = name.substr(0, dot);
    if (is_builtins(part) || part == "__builtins__" || is_one_of(part, kRefusedPackages)) return true;
    name.remove_prefix(dot + 1);
  }
  return false;
}

bool runs_code(std::string_view module, std::string_view name) {
  if (is_builtins(module)) return is_one_of(first_part(name), kRefusedBuiltins);
  if ((module == "io" || module == "_io") && (name == "open" || name == "open_code")) return true;
  return is_one_of(first_part(module), kRefusedPackages) || passes_through_refused(name);
}

void check_node(Ref node) {
  if (node->kind == NodeKind::kGlobal) {
    DCP_CHECK(!runs_code(node->module(), node->text()), kUnsupported, "object: it names ", node->module(), ".",
              node->text(), ", which can run code");
  } else if (node->kind == NodeKind::kPersistentId) {
    DCP_CHECK(is_storage_id(node), kCorruptData, "object: a persistent id that is no storage");
  }
}

/// The value of a UTF-8 text as latin-1.
Bytes latin1_of(std::string_view text) {
  Bytes bytes;
  bytes.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto lead = static_cast<std::uint8_t>(text[i]);
    if (lead < 0x80) {
      bytes.push_back(lead);
      continue;
    }
    DCP_CHECK((lead == 0xC2 || lead == 0xC3) && i + 1 < text.size(), kCorruptData,
              "object: bytes with a character beyond latin-1");
    bytes.push_back(static_cast<std::uint8_t>((lead & 0x03) << 6 | (text[++i] & 0x3F)));
  }
  return bytes;
}

bool is_plain(Ref node) {
  return node->kind == NodeKind::kCall && !node->is_new_object && node->state() == nullptr && node->entries().empty() &&
         node->appended().empty();
}

TypeName type_of_call(Ref node);

TypeName type_of_global(Ref node) {
  if (node->module() == "torch" && dtype_from_name(node->text())) return {"torch", "dtype"};
  return {kBuiltins, "type"};
}

TypeName type_of_call(Ref node) {
  if (is_tensor_call(node)) {
    return node->callee()->text() == "_rebuild_parameter" ? TypeName{"torch.nn.parameter", "Parameter"}
                                                          : TypeName{"torch", "Tensor"};
  }
  Ref callee = node->callee();
  while (callee->kind == NodeKind::kCall) callee = callee->callee();
  const std::string_view name = callee->text();
  if ((callee->module() == "copyreg" || callee->module() == "copy_reg") && !node->items().empty() &&
      node->items()[0]->kind == NodeKind::kGlobal) {
    return {node->items()[0]->module(), node->items()[0]->text()};
  }
  if (callee->is_global("_codecs", "encode")) return {kBuiltins, "bytes"};
  if (callee->is_global("torch.serialization", "_get_layout")) return {"torch", "layout"};
  if (is_builtins(callee->module())) return {kBuiltins, name == "xrange" ? "range" : name};
  return {callee->module(), name};
}

}  // namespace

void check_pickle(Ref root, const ParseLimits& limits) {
  pickle::walk(root, [&](Ref node) {
    check_node(node);
    if (!is_readable_tensor(node)) return true;
    parse_tensor_call(node, limits);
    return false;
  });
}

std::string TypeName::qualified() const { return c10::str(module, ".", name); }

std::string TypeName::display() const { return module == kBuiltins ? std::string(name) : qualified(); }

TypeName type_of(Ref node) {
  switch (node->kind) {
    case NodeKind::kNone:
      return {kBuiltins, "NoneType"};
    case NodeKind::kBool:
      return {kBuiltins, "bool"};
    case NodeKind::kInt:
    case NodeKind::kBigInt:
      return {kBuiltins, "int"};
    case NodeKind::kFloat:
      return {kBuiltins, "float"};
    case NodeKind::kText:
      return {kBuiltins, "str"};
    case NodeKind::kBytes:
      return {kBuiltins, "bytes"};
    case NodeKind::kByteArray:
      return {kBuiltins, "bytearray"};
    case NodeKind::kList:
      return {kBuiltins, "list"};
    case NodeKind::kTuple:
      return {kBuiltins, "tuple"};
    case NodeKind::kDict:
      return {kBuiltins, "dict"};
    case NodeKind::kSet:
      return {kBuiltins, "set"};
    case NodeKind::kFrozenSet:
      return {kBuiltins, "frozenset"};
    case NodeKind::kGlobal:
      return type_of_global(node);
    case NodeKind::kCall:
      return type_of_call(node);
    case NodeKind::kPersistentId:
      return {"torch.storage", "TypedStorage"};
  }
  DCP_THROW(kInternal, "a node of kind ", static_cast<int>(node->kind));
}

bool is_plain_call(Ref node, std::string_view module, std::string_view name) {
  return is_plain(node) && (node->callee()->is_global(module, name) ||
                            (module == kBuiltins && node->callee()->is_global(kOldBuiltins, name)));
}

bool is_readable_tensor(Ref node) {
  if (!is_tensor_call(node)) return false;
  if (node->callee()->text() == "_rebuild_parameter") {
    return !node->items().empty() && is_tensor_call(node->items()[0]) && is_readable_tensor(node->items()[0]);
  }
  const std::string_view name = node->callee()->text();
  return name == "_rebuild_tensor_v2" || name == "_rebuild_tensor_v3" || name == "_rebuild_qtensor";
}

bool is_ordered_dict(Ref node, bool may_have_metadata) {
  if (node->kind != NodeKind::kCall || !node->callee()->is_global("collections", "OrderedDict") ||
      !node->items().empty() || !node->appended().empty()) {
    return false;
  }
  if (node->state() == nullptr) return true;
  return may_have_metadata && node->state()->kind == NodeKind::kDict && node->state()->entries().size() == 1 &&
         node->state()->entries()[0].first->kind == NodeKind::kText &&
         node->state()->entries()[0].first->text() == "_metadata";
}

std::optional<Bytes> bytes_of(Ref node) {
  if (node->kind == NodeKind::kBytes) {
    const ByteSpan bytes = as_bytes(node->text());
    return Bytes(bytes.begin(), bytes.end());
  }
  if (is_plain_call(node, kBuiltins, "bytes") && node->items().empty()) return Bytes();
  if (!is_plain_call(node, "_codecs", "encode") || node->items().size() != 2) return std::nullopt;
  const Ref text = node->items()[0];
  const Ref encoding = node->items()[1];
  if (text->kind != NodeKind::kText || encoding->kind != NodeKind::kText) return std::nullopt;
  if (encoding->text() != "latin1" && encoding->text() != "latin-1") return std::nullopt;
  return latin1_of(text->text());
}

}  // namespace dcp::object_forms
