// The instructions of tcgen05 that one thread executes: products, copies to tensor memory, commits.
#include "common/gpu/emulator/tcgen05.h"

#include <cstring>
#include <utility>

#include "common/gpu/emulator/cluster.h"
#include "common/gpu/emulator/matrix_descriptor.h"
#include "common/gpu/emulator/operand.h"
#include "common/gpu/emulator/region.h"
#include "common/gpu/emulator/tensor_product.h"

namespace emulator {

namespace {

constexpr const char* commit_name = "tcgen05.commit";
constexpr const char* no_commit = "no wait for the mbarrier of a tcgen05.commit that covers it lies between";

void check_alive(const Cta& cta, const char* instruction, Site site) {
    if (cta.live_threads == 0)
        machine.report(std::string(instruction) + " for CTA " + std::to_string(cta.index) + ", which has exited", site);
}

/// The CTAs for which a thread's instruction works, its own first.
std::vector<Cta*> ctas_of(Cta& own, int ctas, const char* instruction, Site site) {
    own.tensor_memory.check_group(instruction, ctas, site);
    if (ctas == 1) return {&own};
    if (own.rank % 2 != 0)
        machine.report(std::string(instruction) +
                           " with cta_group::2 in the odd CTA of its pair; here the even one issues for both: PTX "
                           "names neither, and all known kernels do so",
                       site);
    Cta& peer = *own.cluster->ctas[own.rank + 1];
    check_alive(peer, instruction, site);
    return {&own, &peer};
}

/// An arrival at one mbarrier, when everything that the thread ordered before is done.
struct TensorCommit : TensorOperation {
    Mbarrier* barrier;
    Past known;  // what those who wait for it learn

    TensorCommit(Thread* issuer, Site site, Mbarrier* barrier, const Past& known)
        : TensorOperation(commit_name, issuer, site, Kind::commit), barrier(barrier), known(known) {}
    bool step() override {
        finish_earlier();
        {
            EngineSpeaks engine(*this);
            tsan::release(barrier->tokens[barrier->phase % 2]);
        }
        arrive(*barrier, known, name, site);
        return true;
    }
    const Mbarrier* counted_by() const override { return barrier; }
    bool touches(const Cta& cta) const override { return barrier->cta == &cta; }
};

/// 128 rows of 32 bytes on their way from shared to tensor memory.
struct TensorCopy : TensorOperation {
    std::vector<char*> chunks;
    Cta* cta;
    int column;

    TensorCopy(Thread* issuer, Site site, std::vector<char*> chunks, Cta* cta, int column)
        : TensorOperation(tensor_cp, issuer, site, Kind::copy), chunks(std::move(chunks)), cta(cta), column(column) {}
    bool step() override {
        {
            EngineSpeaks engine(*this);
            for (const char* chunk : chunks) tsan::read_range(chunk, chunk_bytes);
        }
        for (int i = 0; i < 2 * tensor_lanes; ++i)
            for (int word = 0; word < 4; ++word)
                std::memcpy(cta->tensor_memory.cell(i / 2, column + i % 2 * 4 + word), chunks[i] + 4 * word, 4);
        return true;
    }
};

void add(std::unique_ptr<TensorOperation> operation) {
    auto& all = operation->issuer->tensor.operations;
    while (!all.empty() && all.front()->performed()) all.pop_front();
    issue(*all.emplace_back(std::move(operation)));
}

}  // namespace

void TensorOperation::finish_earlier() {
    for (const auto& earlier : issuer->tensor.operations) {
        if (earlier.get() == this) return;
        if ((kind == Kind::commit && earlier->kind != Kind::commit) ||
            (kind == Kind::product && earlier->kind == Kind::copy) || (chain != 0 && earlier->chain == chain))
            finish(*earlier);
    }
}

std::uint32_t TensorThread::order(Thread& self) {
    if (products == 0) {
        products = self.cta->cluster->add({});
        copies = self.cta->cluster->add({});
    }
    ++uncommitted;
    return committed + 1;
}

void tcgen05_mma(const TensorProduct& x, Site site) {
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread(tensor_mma);
    const TensorInstruction instruction(x.instruction, x.ctas, site);
    const Cells d = instruction.cells_of_d(x, site), a = instruction.cells_of_a(x, site);
    std::vector<TensorMma::Side> sides;
    for (Cta* cta : ctas_of(*thread.cta, x.ctas, tensor_mma, site)) {
        TensorMma::Side& side = sides.emplace_back(TensorMma::Side{cta, {}, {}});
        cta->tensor_memory.check_allocated(thread, tensor_mma, d, site);
        if (x.a_in_tensor_memory) {
            cta->tensor_memory.check_allocated(thread, tensor_mma, a, site);
        } else {
            side.a = chunks(cta->arena, MatrixReader::tcgen05, x.a_descriptor, instruction.a_mn_major,
                            instruction.m / x.ctas, "A", site);
        }
        side.b = chunks(cta->arena, MatrixReader::tcgen05, x.b_descriptor, instruction.b_mn_major,
                        instruction.n / x.ctas, "B", site);
    }
    auto product = std::make_unique<TensorMma>(&thread, site, x, instruction, std::move(sides));
    const std::uint32_t epoch = thread.tensor.order(thread);
    const unsigned agent = thread.tensor.products, copies = thread.tensor.copies;
    const Stamp end{static_cast<std::uint16_t>(agent), epoch};
    for (const TensorMma::Side& side : product->sides) {
        TensorMemory& memory = side.cta->tensor_memory;
        if (x.a_in_tensor_memory) {
            memory.read({tensor_mma, &thread, site, agent, a, 0, copies}, epoch, {&thread});
            totals.tensor_memory_read += 2u * mma_k * static_cast<unsigned>(instruction.m / x.ctas);
        }
        memory.write({tensor_mma, &thread, site, agent, d, product->chain, copies}, epoch, {&thread}, x.accumulate);
        for (const auto* operand : {&side.a, &side.b}) order_read(side.cta->arena, *product, end, *operand, no_commit);
    }
    totals.mma_flops += std::uint64_t{2} * static_cast<unsigned>(instruction.m * instruction.n) * mma_k;
    add(std::move(product));
}

void tcgen05_cp_128x256b(std::uint32_t address, std::uint64_t descriptor, int ctas, Site site) {
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread(tensor_cp);
    if (lane_of(address) != 0)
        machine.report("tcgen05.cp of 128 lanes from lane " + std::to_string(lane_of(address)) + " on; it is 0", site);
    const Cells cells{0xFF, column_of(address), 8};
    for (Cta* cta : ctas_of(*thread.cta, ctas, tensor_cp, site)) {
        cta->tensor_memory.check_allocated(thread, tensor_cp, cells, site);
        auto copy = std::make_unique<TensorCopy>(
            &thread, site,
            chunks(cta->arena, MatrixReader::tcgen05, descriptor, false, tensor_lanes, "the source", site), cta,
            cells.column);
        const std::uint32_t epoch = thread.tensor.order(thread);
        const unsigned agent = thread.tensor.copies;
        cta->tensor_memory.write({tensor_cp, &thread, site, agent, cells}, epoch, {&thread});
        order_read(cta->arena, *copy, {static_cast<std::uint16_t>(agent), epoch}, copy->chunks, no_commit);
        totals.tensor_memory_written += static_cast<unsigned>(4 * tensor_lanes * cells.columns);
        add(std::move(copy));
    }
}

void tcgen05_commit(std::uint32_t barrier, int ctas, std::uint32_t cta_mask, Site site) {
    tsan::Ignore ignore;
    machine.operation();
    Thread& thread = machine.thread(commit_name);
    Cta& cta = *thread.cta;
    cta.tensor_memory.check_group(commit_name, ctas, site);
    TensorThread& own = thread.tensor;
    if (own.uncommitted == 0 && thread.past->known(own.products) >= own.committed)
        machine.report(std::string(commit_name) + ": this thread has ordered no product and no copy " +
                           (own.committed == 0 ? "" : "that it has not seen complete ") +
                           "before it, and PTX does not say what happens then; who has ordered some commits them",
                       site);
    if (std::exchange(own.uncommitted, 0) > 0) ++own.committed;
    fence_before(thread);
    const auto known = boost::make_local_shared<Clock>(*thread.past);
    for (const Stamp& moved : own.fenced) known->learn(moved.agent, moved.epoch);
    for (const unsigned agent : {own.products, own.copies}) known->learn(agent, own.committed);
    std::vector<std::uint32_t> addresses;
    for (int rank = 0; rank < 16; ++rank)
        if (cta_mask >> rank & 1) addresses.push_back(address_in(rank, barrier));
    if (cta_mask == 0) addresses.push_back(barrier);
    for (const std::uint32_t address : addresses) {
        Cta& there = cta_of(thread, address, commit_name, site);
        check_alive(there, commit_name, site);
        Mbarrier& mbarrier = mbarrier_at(thread, there, address, commit_name, site);
        check_visible_beyond(thread, mbarrier, commit_name, site);
        add(std::make_unique<TensorCommit>(&thread, site, &mbarrier, known));
    }
}

}  // namespace emulator
