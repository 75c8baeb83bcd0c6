#include "torch_dcp/format/object_item.h"

#include <memory>
#include <optional>
#include <utility>

#include "torch_dcp/format/object_decoder_internal.h"
#include "torch_dcp/format/object_forms_internal.h"
#include "torch_dcp/format/object_reader_internal.h"
#include "torch_dcp/io/span_file.h"

namespace dcp {

Value decode_object_item(Bytes item, const ParseLimits& limits) {
  std::string type_name;
  {
    const SpanFile file(item);
    ObjectReader reader(file, limits);
    if (auto value = ObjectDecoder(reader, limits).value(reader.root())) return std::move(*value);
    reader.check_all_members();
    type_name = object_forms::type_of(reader.root()).display();
  }
  return Opaque{std::make_shared<const Bytes>(std::move(item)), std::move(type_name)};
}

}  // namespace dcp
