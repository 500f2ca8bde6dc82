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

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
    // A link stays one: its target is replaced. Anything else that is no file (a device, a pipe) would be replaced by one.
    std::error_code error;
    const std::filesystem::path target = std::filesystem::canonical(path_, error);
    if (!error) {
        if (std::filesystem::is_directory(target)) fail(path_, "it is a directory");
        if (!std::filesystem::is_regular_file(target)) fail(path_, "it is not a file");
        if (::access(target.c_str(), W_OK) != 0) fail(path_, last_error());
        path_ = target.string();
    }
    partial_ = path_ + ".partial-" + std::to_string(::getpid());
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
