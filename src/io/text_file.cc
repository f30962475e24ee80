#include "io/text_file.h"

#include "base/error.h"
#include "io/input_file.h"

namespace tilefold {

std::string read_text_file(const std::string& path) {
  const InputFile file(path);
  require(file.size() > 0, "cannot read ", path, ": the file is empty");
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace tilefold
