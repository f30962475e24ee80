// A directory of its own for a test, removed with all that is in it at the end.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "base/error.h"

namespace tilefold {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    // mkdtemp wants six X at the end and writes a free name over them.
    std::string pattern = (std::filesystem::temp_directory_path() / "tilefold-XXXXXX").string();
    expect(mkdtemp(pattern.data()) != nullptr, "no directory for the test");
    directory_ = pattern;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(directory_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& directory() const { return directory_; }
  std::string file(const std::string& name) const { return directory_ + "/" + name; }

 private:
  std::string directory_;
};

}  // namespace tilefold
