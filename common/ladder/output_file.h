#pragma once

#include <stdexcept>
#include <string>

namespace ladder {

/// A file that appears whole or not at all: it is written beside its place under another name and renamed at the end.
class OutputFile {
  public:
    /// Throws std::runtime_error, naming the path and the reason, if the file cannot be written there.
    explicit OutputFile(std::string path);
    /// Leaves nothing behind unless commit() was called.
    ~OutputFile();
    OutputFile(const OutputFile&) = delete;
    OutputFile& operator=(const OutputFile&) = delete;

    /// Writes `text` and puts the file in its place. Throws std::runtime_error.
    void commit(const std::string& text);

  private:
    std::string path_, partial_;
};

}  // namespace ladder
