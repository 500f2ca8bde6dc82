#include "common/gpu/emulator/tensor_memory.h"

#include <algorithm>
#include <cstring>

#include "common/gpu/emulator/cluster.h"

namespace emulator {

namespace {

constexpr int granule_lanes = 16;
constexpr const char *alloc_name = "tcgen05.alloc", *dealloc_name = "tcgen05.dealloc";

/// Whether what the stamp tells of is over for what the thread does in tensor memory, if it knows this much.
bool over(const TensorStamp& earlier, const Thread& thread, const Past& known) {
    if (earlier.access == nullptr) return true;
    const TensorWarp& own = thread.cta->warps[thread.warp()].tensor;
    for (const TensorAgent* agent : {&own.loads, &own.stores})
        if (agent->number == earlier.access->agent) return earlier.epoch <= agent->over;
    return earlier.epoch <= known->known(earlier.access->agent);
}

/// What is missing for the thread to make its access after an earlier one that is not over for it.
std::string missing(const TensorStamp& earlier, const TensorAccess& access, const Thread& thread) {
    const TensorAccess& before = *earlier.access;
    const Thread& issuer = *before.issuer;
    const bool told = earlier.epoch <= thread.past->known(before.agent);
    const char* const no_fence_after = "has been told that it is done, but no tcgen05.fence::after_thread_sync follows";
    if (before.name == tensor_ld || before.name == tensor_st) {
        const bool load = before.name == tensor_ld;
        const std::string wait = load ? "tcgen05.wait::ld" : "tcgen05.wait::st";
        const TensorWarp& warp = issuer.cta->warps[issuer.warp()].tensor;
        if (earlier.epoch > (load ? warp.loads : warp.stores).over) return "no " + wait + " has covered it";
        if (told) return text(thread) + " " + no_fence_after;
        for (int lane = 0; lane < warp_size; ++lane)
            if (issuer.cta->threads[issuer.index + lane]->tensor.fenced[load ? 0 : 1].epoch >= earlier.epoch)
                return "no barrier lies between its tcgen05.fence::before_thread_sync and this";
        return "no tcgen05.fence::before_thread_sync follows its " + wait;
    }
    std::string result;
    if (earlier.epoch > issuer.tensor.committed) {
        result = "no tcgen05.commit has followed it";
    } else {
        result = text(thread) + " " + (told ? no_fence_after : "has not waited for the mbarrier of its commit");
    }
    if (before.agent == access.agent && before.name == tensor_mma)
        result += "; of a thread's products only those of the same D and shape follow each other";
    if (before.name == access.name && &issuer != &thread && issuer.cta == thread.cta && issuer.warp() == thread.warp())
        result += "; both are of one warp, of which one thread executes the instruction for all";
    return result;
}

std::string granule(int lane, int column) {
    return "column " + std::to_string(column) + " of lanes " + std::to_string(lane) + "-" +
           std::to_string(lane + granule_lanes - 1);
}

}  // namespace

std::string text(const Cells& cells) {
    std::vector<int> lanes;
    for (int lane = 0; lane < tensor_lanes; ++lane)
        if (cells.lanes >> lane / granule_lanes & 1) lanes.push_back(lane);
    return "lanes " + ranges(lanes) + " of columns " + std::to_string(cells.column) + "-" +
           std::to_string(cells.column + cells.columns - 1);
}

void TensorMemory::start(Cta& cta) {
    cta_ = &cta;
    accesses_.clear();
    allocations_.clear();
    history_.clear();
    ctas_ = 0;
    relinquished_ = false;
}

// Allocation ---------------------------------------------------------------------------------------------------------

void TensorMemory::check_group(const char* instruction, int ctas, Site site) {
    if (ctas_ == 0) ctas_ = ctas;
    if (ctas_ != ctas)
        machine.report(std::string(instruction) + " with cta_group::" + std::to_string(ctas) +
                           " in a kernel that has used cta_group::" + std::to_string(ctas_) + "; it is one for all",
                       site);
    if (ctas == 2 && cta_->cluster->size % 2 != 0)
        machine.report(std::string(instruction) + " with cta_group::2 in a cluster of " +
                           std::to_string(cta_->cluster->size) + "; CTAs 2 i and 2 i + 1 are a pair",
                       site);
}

int TensorMemory::allocate(const Thread& thread, int columns, int ctas, Site site) {
    const auto report = [&](const std::string& why) {
        machine.report(std::string(alloc_name) + " of " + std::to_string(columns) + " columns: " + why, site);
    };
    check_group(alloc_name, ctas, site);
    if (relinquished_) report("the CTA has executed tcgen05.relinquish_alloc_permit");
    if (columns < 32 || columns > tensor_columns || !std::has_single_bit(static_cast<unsigned>(columns)))
        report("it is 32, 64, 128, 256 or 512");
    if (!history_.empty() && columns > history_.back().second)
        report("the one before was of " + std::to_string(history_.back().second) + "; they never become larger");
    int used = 0;
    for (const Allocation& other : allocations_) used += other.columns;
    if (used + columns > tensor_columns)
        report("the CTA has " + std::to_string(used) + " of 512 already, so it would wait for ever");

    std::vector<int> places;  // multiples of `columns`: since sizes never grow, there always is one
    for (int column = 0; column < tensor_columns; column += columns)
        if (std::none_of(allocations_.begin(), allocations_.end(), [&](const Allocation& other) {
                return column < other.column + other.columns && other.column < column + columns;
            }))
            places.push_back(column);
    int column = places[machine.random().below(static_cast<std::uint32_t>(places.size()))];
    if (ctas == 2) {
        const auto& peer = cta_->cluster->ctas[cta_->rank ^ 1]->tensor_memory.history_;
        if (peer.size() > history_.size()) {
            if (peer[history_.size()].second != columns)
                report("the other CTA of the pair has allocated " + std::to_string(peer[history_.size()].second));
            column = peer[history_.size()].first;
            if (std::find(places.begin(), places.end(), column) == places.end())
                report("the other CTA of the pair has freed other columns before it than this one");
        }
    }
    history_.emplace_back(column, columns);
    allocations_.push_back({column, columns, site, {static_cast<std::uint16_t>(thread.agent), thread.epoch}});
    if (cells_ == nullptr) cells_ = std::make_unique<float[]>(std::size_t{tensor_lanes} * tensor_columns);
    granules_.resize(static_cast<std::size_t>(tensor_lanes / granule_lanes) * tensor_columns);
    for (int half = 0; half < tensor_lanes; half += 64)
        std::memset(cell(half, column), 0xFF, sizeof(float) * 64 * static_cast<std::size_t>(columns));
    for_each_run({0xFF, column, columns}, [](Knowledge& known, int, int) { known = {}; });
    return column;
}

void TensorMemory::free(const Accessors& warp, std::uint32_t address, int columns, int ctas, Site site) {
    check_group(dealloc_name, ctas, site);
    const auto found = std::find_if(allocations_.begin(), allocations_.end(), [&](const Allocation& allocation) {
        return static_cast<std::uint32_t>(allocation.column) == address && allocation.columns == columns;
    });
    if (found == allocations_.end()) {
        std::string all;
        for (const Allocation& allocation : allocations_)
            all += (all.empty() ? "" : ", ") + std::to_string(allocation.columns) + " at " +
                   std::to_string(allocation.column);
        machine.report(std::string(dealloc_name) + " of " + std::to_string(columns) + " columns at address " +
                           std::to_string(address) + ", which are no allocation; there are " +
                           (all.empty() ? "none" : all),
                       site);
    }
    const TensorAccess access{dealloc_name, warp.front(), site, 0, {0xFF, found->column, found->columns}};
    for_each_run(access.cells, [&](Knowledge& known, int lane, int column) {
        check_over(access, known.writer, "writes", warp, lane, column);
        for (const TensorStamp& reader : known.readers) check_over(access, reader, "reads", warp, lane, column);
    });
    allocations_.erase(found);
}

void TensorMemory::relinquish(int ctas, Site site) {
    check_group("tcgen05.relinquish_alloc_permit", ctas, site);
    relinquished_ = true;
}

void TensorMemory::check_allocated(const Thread& thread, const char* instruction, const Cells& cells, Site site) const {
    const std::string what = std::string(instruction) + " of " + text(cells) +
                             (thread.cta == cta_ ? "" : " of CTA " + std::to_string(cta_->index));
    for (const Allocation& allocation : allocations_)
        if (allocation.column <= cells.column &&
            cells.column + cells.columns <= allocation.column + allocation.columns) {
            if (!ordered(allocation.stamp, thread))
                machine.report(
                    what + ": they were allocated at " + text(allocation.site) + ", and no barrier lies between", site);
            return;
        }
    std::string all;
    for (const Allocation& allocation : allocations_)
        all += (all.empty() ? "" : ", ") + std::to_string(allocation.column) + "-" +
               std::to_string(allocation.column + allocation.columns - 1);
    machine.report(what + ": allocated are " + (all.empty() ? "none" : "columns " + all), site);
}

void TensorMemory::check_after_exit(Site site) const {
    if (allocations_.empty()) return;
    const Allocation& allocation = allocations_.front();
    machine.report("the CTA ends, and no tcgen05.dealloc has given back the " + std::to_string(allocation.columns) +
                       " columns of tensor memory allocated at " + text(allocation.site),
                   site);
}

// Accesses -----------------------------------------------------------------------------------------------------------

/// Calls update(knowledge, first lane, column) once for each run of granules about which the same is known.
template <class Update>
void TensorMemory::for_each_run(const Cells& cells, Update update) {
    for (int group = 0; group < tensor_lanes / granule_lanes; ++group) {
        if (!(cells.lanes >> group & 1)) continue;
        Knowledge* const row = granules_.data() + group * tensor_columns;
        const int end = cells.column + cells.columns;
        for (int column = cells.column; column < end;) {
            const Knowledge before = row[column];
            Knowledge after = before;
            update(after, group * granule_lanes, column);
            do row[column++] = after;
            while (column < end && row[column] == before);
        }
    }
}

TensorStamp TensorMemory::stamp(const TensorAccess& access, std::uint64_t epoch) {
    return {&*accesses_.insert(access).first, epoch};
}

void TensorMemory::check_written(const TensorAccess& access, const Knowledge& known, int lane, int column) const {
    if (known.writer.access != nullptr) return;
    machine.report(std::string(access.name) + " of " + text(access.cells) + ": nobody has written " +
                       granule(lane, column) + " since it was allocated",
                   access.site);
}

void TensorMemory::check_over(const TensorAccess& access, const TensorStamp& earlier, const char* does,
                              const Accessors& accessors, int lane, int column) const {
    for (const Thread* thread : accessors) {
        if (over(earlier, *thread, access.name == dealloc_name ? thread->past : thread->tensor.past)) continue;
        const TensorAccess& before = *earlier.access;
        machine.report(std::string(access.name) + " of " + text(access.cells) + ": " + before.name + " issued by " +
                           text(*before.issuer) + " at " + text(before.site) + " " + does + " " +
                           granule(lane, column) + ", and " + missing(earlier, access, *thread),
                       access.site);
    }
}

void TensorMemory::read(const TensorAccess& access, std::uint64_t epoch, const Accessors& accessors) {
    const TensorStamp own = stamp(access, epoch);
    for_each_run(access.cells, [&](Knowledge& known, int lane, int column) {
        check_written(access, known, lane, column);
        if (access.copies == 0 || known.writer.access->agent != access.copies)
            check_over(access, known.writer, "writes", accessors, lane, column);
        const auto gives_way = [&](const TensorStamp& reader) {
            return reader.access == nullptr || reader.access->agent == access.agent ||
                   over(reader, *accessors.front(), accessors.front()->tensor.past);
        };
        const auto place = std::find_if(std::begin(known.readers), std::end(known.readers) - 1, gives_way);
        *place = own;
    });
}

void TensorMemory::write(const TensorAccess& access, std::uint64_t epoch, const Accessors& accessors, bool reads_too) {
    const TensorStamp own = stamp(access, epoch);
    for_each_run(access.cells, [&](Knowledge& known, int lane, int column) {
        if (reads_too) check_written(access, known, lane, column);
        if (const TensorAccess* before = known.writer.access; before != nullptr) {
            const bool follows = (access.copies != 0 && before->agent == access.copies) ||
                                 (access.chain != 0 && before->agent == access.agent && before->chain == access.chain);
            if (!follows) check_over(access, known.writer, "writes", accessors, lane, column);
        }
        for (const TensorStamp& reader : known.readers) check_over(access, reader, "reads", accessors, lane, column);
        known = {own, {}};
    });
}

}  // namespace emulator
