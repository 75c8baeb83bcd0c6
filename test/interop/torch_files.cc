// Hands files of torch.save and checkpoints from one form to another, for the tests that open them with PyTorch.
//
//   torch_files rewrite IN.pt OUT.pt zip|legacy      all at once
//   torch_files stream IN.pt OUT.pt zip|legacy       tensor by tensor
//   torch_files to_dcp IN.pt FOLDER
//   torch_files from_dcp FOLDER OUT.pt

#include <ATen/core/Tensor.h>

#include <exception>
#include <iostream>
#include <string>

#include "torch_dcp/base/error.h"
#include "torch_dcp/dcp.h"

namespace dcp {
namespace {

TorchSaveOptions format_named(const std::string& name) {
  DCP_CHECK(name == "zip" || name == "legacy", kInvalidArgument, "no form \"", name, "\"");
  TorchSaveOptions options;
  options.form = name == "zip" ? TorchSaveForm::kZip : TorchSaveForm::kBeforeZip;
  return options;
}

void stream(const std::string& from, const std::string& to, const TorchSaveOptions& options) {
  const TorchFileReader reader(from);
  TorchFileWriter writer(reader.structure(), to, options);
  for (std::size_t number = 0; writer.awaited() != nullptr; ++number) {
    // A tied tensor comes once.
    const Value* described = get_element(reader.structure().as_dict(), reader.tensors()[number].path);
    if (described->as_tensor().is_same(*writer.awaited())) writer.write(reader.read(number));
  }
  writer.commit();
}

int run(const std::string& command, const std::string& from, const std::string& to, const std::string& form) {
  if (command == "rewrite") {
    torch_save(torch_load(from), to, format_named(form));
  } else if (command == "stream") {
    stream(from, to, format_named(form));
  } else if (command == "to_dcp") {
    save(torch_load(from).as_dict(), to);
  } else if (command == "from_dcp") {
    torch_save(load_keys(from), to);
  } else {
    DCP_THROW(kInvalidArgument, "no command \"", command, "\"");
  }
  return 0;
}

}  // namespace
}  // namespace dcp

int main(int count, char** arguments) {
  if (count < 4) {
    std::cerr << "torch_files COMMAND FROM TO [FORM]\n";
    return 2;
  }
  try {
    return dcp::run(arguments[1], arguments[2], arguments[3], count > 4 ? arguments[4] : "zip");
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
