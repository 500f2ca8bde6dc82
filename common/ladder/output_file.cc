#include "common/ladder/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

namespace ladder {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& why) {
    throw std::runtime_error(path + " cannot be written: " + why + ".");
}

std::string last_error() { return std::generic_category().message(errno); }

}  // namespace

OutputFile::OutputFile(std::string path)
    : path_(std::move(path)), partial_(path_ + ".partial-" + std::to_string(::getpid())) {
    if (std::filesystem::is_directory(path_)) fail(path_, "it is a directory");
    if (std::filesystem::exists(path_) && ::access(path_.c_str(), W_OK) != 0) fail(path_, last_error());
    if (!std::ofstream(partial_)) fail(path_, last_error());
}

OutputFile::~OutputFile() {
    std::error_code ignored;
    std::filesystem::remove(partial_, ignored);  // commit() has renamed it
}

void OutputFile::commit(const std::string& text) {
    std::ofstream stream(partial_);
    stream << text;
    stream.close();
    if (!stream) fail(path_, last_error());
    std::error_code error;
    std::filesystem::rename(partial_, path_, error);
    if (error) fail(path_, error.message());
}

}  // namespace ladder
