#include "common/gpu/emulator/warpgroup_registers.h"

#include <algorithm>
#include <cstring>

#include "common/gpu/emulator/machine.h"

namespace emulator {

namespace {

constexpr int threads = warpgroup_size;

/// Calls each(thread, register, block, row, column) for every pair of registers of D, columns `column` and `column` + 1
/// of its block.
template <class Each>
void for_each_pair(int registers, Each each) {
    for (int thread = 0; thread < threads; ++thread) {
        const int row = thread / 32 * 16 + thread % 32 / 4, column = 2 * (thread % 4);
        for (int i = 0; i < registers; i += 2) each(thread, i, i / 4, row + i / 2 % 2 * 8, column);
    }
}

bool overlap(const char* a, int a_bytes, const char* b, int b_bytes) { return a < b + b_bytes && b < a + a_bytes; }

char* known(const RegisterUse& use, int thread) {
    return use.array->known.data() + thread * use.array->bytes + use.first;
}

/// "register 3 of D in thread 37 (warp 1, lane 5)": the first one with which ordinary code has done something; empty if
/// there is none.
std::string changed(const RegisterUse& use) {
    const int first_thread = machine.current()->index / threads * threads;
    for (int thread = 0; thread < threads; ++thread) {
        const char *now = use.data(thread), *before = known(use, thread);
        if (std::memcmp(now, before, use.bytes) == 0) continue;
        const auto at = std::mismatch(now, now + use.bytes, before).first - now;
        return "register " + std::to_string(at / 4) + " of " + use.operand + " in " +
               text(*machine.current()->cta->threads[first_thread + thread]);
    }
    return "";
}

/// D leaves the registers.
void take_sums(RegisterUse& use) {
    use.sums.resize(use.bytes / 4 / 4);
    for_each_pair(use.bytes / 4, [&](int thread, int i, int block, int row, int column) {
        std::memcpy(&use.sums[block][row][column], use.data(thread) + 4 * i, 8);
    });
    for (int thread = 0; thread < threads; ++thread) {
        std::memset(use.data(thread), 0xFF, use.bytes);
        std::memset(known(use, thread), 0xFF, use.bytes);
    }
}

void return_sums(const RegisterUse& use) {
    for_each_pair(use.bytes / 4, [&](int thread, int i, int block, int row, int column) {
        std::memcpy(use.data(thread) + 4 * i, &use.sums[block][row][column], 8);
    });
    for (int thread = 0; thread < threads; ++thread) std::memcpy(known(use, thread), use.data(thread), use.bytes);
}

/// The i-th array of every thread.
RegisterPointers pointers(const RegisterLists& lists, std::size_t i, Site site) {
    RegisterPointers result;
    for (int thread = 0; thread < threads; ++thread) {
        if (lists[thread]->size() != lists[0]->size() || lists[thread]->begin()[i].bytes != lists[0]->begin()[i].bytes)
            machine.report("wgmma: the threads of the warpgroup name different arrays", site);
        result[thread] = static_cast<char*>(const_cast<void*>(lists[thread]->begin()[i].data));
    }
    return result;
}

bool names(const std::initializer_list<RegisterArray>& list, const char* data, int bytes) {
    return std::any_of(list.begin(), list.end(), [&](const RegisterArray& array) {
        const auto offset = data - static_cast<const char*>(array.data);
        return offset >= 0 && offset + bytes <= array.bytes;
    });
}

}  // namespace

void RegisterUse::read_a(std::uint16_t (&a)[wgmma_m][mma_k]) const {
    for (int thread = 0; thread < threads; ++thread)
        for (int j = 0; j < 4; ++j)
            std::memcpy(&a[thread / 32 * 16 + thread % 32 / 4 + j % 2 * 8][2 * (thread % 4) + j / 2 * 8],
                        data(thread) + 4 * j, 4);
}

FencedArray* WarpgroupRegisters::array_of(const char* data, int bytes) {
    for (FencedArray& array : arrays_)
        if (array.data[0] <= data && data + bytes <= array.data[0] + array.bytes) return &array;
    return nullptr;
}

void WarpgroupRegisters::fence(const RegisterLists& lists, Site site) {
    fenced_ = true;
    for (std::size_t i = 0; i < lists[0]->size(); ++i) {
        const int bytes = lists[0]->begin()[i].bytes;
        if (bytes == 0) continue;
        const RegisterPointers data = pointers(lists, i, site);
        for (const RegisterUse& use : uses_)
            if (overlap(data[0], bytes, use.data(0), use.bytes))
                machine.report("wgmma.fence names registers that are " + std::string(use.operand) +
                                   " of the product in flight issued at " + text(use.site) +
                                   "; a wgmma_wait_group must cover it first",
                               site);
        FencedArray* array = array_of(data[0], bytes);
        if (array == nullptr || !array->lies_at(data)) {  // others that were here are no more
            arrays_.remove_if([&](const FencedArray& old) { return overlap(data[0], bytes, old.data[0], old.bytes); });
            array = &arrays_.emplace_back(FencedArray{data, bytes, std::vector<char>(std::size_t(bytes) * threads)});
        }
        const auto first = data[0] - array->data[0];
        for (int thread = 0; thread < threads; ++thread)
            std::memcpy(array->known.data() + thread * array->bytes + first, data[thread], bytes);
    }
}

RegisterUse& WarpgroupRegisters::use(const char* operand, const RegisterPointers& data, int bytes, Site site) {
    if (!fenced_) machine.report("wgmma: no wgmma_fence comes before the first product of the warpgroup", site);
    const std::string name = operand;
    FencedArray* const array = array_of(data[0], bytes);
    RegisterUse* use = nullptr;
    for (RegisterUse& other : uses_) {
        if (!overlap(data[0], bytes, other.data(0), other.bytes)) continue;
        if (other.data(0) != data[0] || other.bytes != bytes || name != other.operand)
            machine.report("wgmma: registers of " + name + " are " + other.operand + " of " +
                               (name == other.operand ? "another shape in " : "") + "the product in flight issued at " +
                               text(other.site) + "; a wgmma_wait_group must cover it first",
                           site);
        use = &other;
    }
    if (array == nullptr)
        machine.report("wgmma: no wgmma_fence names the registers of " + name +
                           "; what ordinary code did to them may not be done yet",
                       site);
    if (!array->lies_at(data))
        machine.report("wgmma: the threads of the warpgroup pass different registers as " + name, site);
    if (use == nullptr) {
        use = &uses_.emplace_back(RegisterUse{operand, array, static_cast<int>(data[0] - array->data[0]), bytes});
        if (const std::string where = changed(*use); !where.empty())
            machine.report(
                "wgmma: ordinary code has changed " + where + ", and no wgmma_fence that names it lies between", site);
        if (name == "D") take_sums(*use);
    }
    ++use->products;
    use->site = site;
    return *use;
}

void WarpgroupRegisters::release(const RegisterLists& lists, Site site) {
    for (auto use = uses_.begin(); use != uses_.end();) {
        if (use->products > 0) {
            ++use;
            continue;
        }
        if (const std::string where = changed(*use); !where.empty())
            machine.report(
                "wgmma: " + where + " was changed while the product issued at " + text(use->site) + " was in flight",
                site);
        for (int thread = 0; thread < threads; ++thread)
            if (!names(*lists[thread], use->data(thread), use->bytes))
                machine.report("wgmma_wait_group completes a product whose registers it does not name: " +
                                   std::string(use->operand) + " of the one issued at " + text(use->site),
                               site);
        if (!use->sums.empty()) return_sums(*use);
        use = uses_.erase(use);
    }
}

}  // namespace emulator
