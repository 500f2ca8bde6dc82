// cp.async: the copies of one thread, from issue to the wait that covers them.
#pragma once

#include "common/gpu/emulator/async_operation.h"

namespace emulator {

/// One copy. Issued: the destination is poisoned and belongs to the copy. Performed, at a time that the schedule draws:
/// the source is read, the destination written. Complete, when a wait of the issuing thread covers it: the destination
/// is free.
struct Copy : AsyncOperation {
    char* destination;
    const char* source;
    int bytes, bytes_read;

    Copy(Thread* issuer, Site site, char* destination, const char* source, int bytes, int bytes_read)
        : AsyncOperation("cp.async", issuer, site),
          destination(destination),
          source(source),
          bytes(bytes),
          bytes_read(bytes_read) {}
    bool step() override;
};

}  // namespace emulator
