// The instructions of wgmma: what a warpgroup orders, commits and waits for.
#include "common/gpu/emulator/wgmma.h"

#include <cstdio>

#include "common/gpu/emulator/cluster.h"
#include "common/gpu/emulator/operand.h"
#include "common/gpu/emulator/region.h"
#include "common/gpu/emulator/warpgroup.h"

namespace emulator {

namespace {

constexpr const char *fence_name = "wgmma.fence", *commit_name = "wgmma.commit_group", *wait_name = "wgmma.wait_group";

std::string text(const Wgmma& x) {
    char b[64], a[64] = "registers";
    const auto operand = [](char(&text)[64], std::uint64_t descriptor, bool mn_major) {
        std::snprintf(text, sizeof(text), "0x%016llX (%s-major)", static_cast<unsigned long long>(descriptor),
                      mn_major ? "mn" : "k");
    };
    if (x.a == nullptr) operand(a, x.a_descriptor, x.a_mn_major);
    operand(b, x.b_descriptor, x.b_mn_major);
    return "m64n" + std::to_string(x.n) + "k16 of " + (x.bf16 ? "bf16" : "f16") + ", A " + a + ", B " + b +
           (x.accumulate ? ", D = A B + D" : ", D = A B");
}

const Wgmma& passed(const WarpgroupMeeting& meeting, int thread) {
    return *static_cast<const Wgmma*>(meeting.operands[thread]);
}

void check_same(const Cta& cta, int w, Site site) {
    const WarpgroupMeeting& meeting = cta.warpgroups[w].meeting;
    const Wgmma& first = passed(meeting, 0);
    for (int i = 1; i < warpgroup_size; ++i) {
        const Wgmma& other = passed(meeting, i);
        if (first.same_instruction(other)) continue;
        machine.report("wgmma: all threads of a warpgroup pass the same, but " +
                           text(*cta.threads[w * warpgroup_size]) + " passes " + text(first) + ", and " +
                           text(*cta.threads[w * warpgroup_size + i]) + " " + text(other),
                       site);
    }
}

Products& own_products(const char* instruction) {
    const Thread& thread = machine.thread(instruction);
    return thread.cta->warpgroups[thread.index / warpgroup_size].products;
}

RegisterPointers pointers(const WarpgroupMeeting& meeting, bool of_d) {
    RegisterPointers result;
    for (int i = 0; i < warpgroup_size; ++i) {
        const Wgmma& x = passed(meeting, i);
        result[i] = of_d ? reinterpret_cast<char*>(x.d) : reinterpret_cast<char*>(const_cast<std::uint32_t*>(x.a));
    }
    return result;
}

/// Operands of fence and wait.
struct Named {
    const std::initializer_list<RegisterArray>& registers;
    int pending = 0;  // groups
};

RegisterLists lists(const WarpgroupMeeting& meeting) {
    RegisterLists result;
    for (int i = 0; i < warpgroup_size; ++i) result[i] = &static_cast<const Named*>(meeting.operands[i])->registers;
    return result;
}

bool issue_product(Cta& cta, int w) {
    Warpgroup& warpgroup = cta.warpgroups[w];
    Products& products = warpgroup.products;
    const WarpgroupMeeting& meeting = warpgroup.meeting;
    const Site site = meeting.site;
    const Wgmma& x = passed(meeting, 0);
    check_same(cta, w, site);
    if (x.n % 8 != 0 || x.n < 8 || x.n > 256)
        machine.report("wgmma with n = " + std::to_string(x.n) + "; it is 8, 16, ... 256", site);
    if (products.agent == 0) products.agent = cta.cluster->add({});
    std::vector<char*> a, b = chunks(cta.arena, MatrixReader::wgmma, x.b_descriptor, x.b_mn_major, x.n, "B", site);
    if (x.a == nullptr) a = chunks(cta.arena, MatrixReader::wgmma, x.a_descriptor, x.a_mn_major, wgmma_m, "A", site);
    Product& product =
        products.operations.emplace_back(machine.current(), site, warpgroup, x, std::move(a), std::move(b));
    ++products.uncommitted;
    product.d = &products.registers.use("D", pointers(meeting, true), x.n / 2 * 4, site);
    if (x.a != nullptr) product.a_registers = &products.registers.use("A", pointers(meeting, false), 16, site);
    const Stamp end{static_cast<std::uint16_t>(products.agent), product.group};
    for (const auto* operand : {&product.b, &product.a})
        order_read(cta.arena, product, end, *operand, "no wait_group that covers it lies between");
    totals.mma_flops += std::uint64_t{2} * wgmma_m * static_cast<unsigned>(x.n) * mma_k;
    issue(product);
    return true;
}

bool complete_groups(Cta& cta, int w) {
    Warpgroup& warpgroup = cta.warpgroups[w];
    Products& products = warpgroup.products;
    auto& operations = products.operations;
    const WarpgroupMeeting& meeting = warpgroup.meeting;
    if (products.uncommitted > 0)
        machine.report("wgmma.wait_group while " + std::to_string(products.uncommitted) +
                           " products are not committed, the first issued at " +
                           text(operations[operations.size() - products.uncommitted].site) +
                           "; it waits for what wgmma_commit_group has closed",
                       meeting.site);
    const int pending = static_cast<const Named*>(meeting.operands[0])->pending;
    if (static_cast<int>(products.sizes.size()) <= pending) return true;
    while (static_cast<int>(products.sizes.size()) > pending) {
        for (int n = products.sizes.front(); n > 0; --n) {
            Product& product = operations.front();
            finish(product);
            --product.d->products;
            if (product.a_registers != nullptr) --product.a_registers->products;
            operations.pop_front();
        }
        products.sizes.pop_front();
        ++products.completed;
    }
    products.registers.release(lists(meeting), meeting.site);
    Sync end;  // all threads of the warpgroup learn that the engine has read
    end.learn(products.agent, products.completed);
    for (int i = w * warpgroup_size; i < (w + 1) * warpgroup_size; ++i) end.acquire(*cta.threads[i]);
    return true;
}

}  // namespace

void wgmma(const Wgmma& operands, Site site) {
    tsan::Ignore ignore;
    machine.operation();
    Products& products = own_products(product_name);
    tsan::release(products.issue_tokens[products.issued % products.issue_tokens.size()]);
    meet_warpgroup(product_name, &operands, site, issue_product);
}

void wgmma_fence(const std::initializer_list<RegisterArray>& registers, Site site) {
    tsan::Ignore ignore;
    machine.operation();
    const Named named{registers};
    meet_warpgroup(fence_name, &named, site, [](Cta& cta, int w) {
        Warpgroup& warpgroup = cta.warpgroups[w];
        warpgroup.products.registers.fence(lists(warpgroup.meeting), warpgroup.meeting.site);
        return true;
    });
}

void wgmma_commit_group(Site site) {
    tsan::Ignore ignore;
    machine.operation();
    meet_warpgroup(commit_name, nullptr, site, [](Cta& cta, int w) {
        Products& products = cta.warpgroups[w].products;
        products.commit();
        ++products.committed;
        return true;
    });
}

void wgmma_wait_group(int pending, const std::initializer_list<RegisterArray>& registers, Site site) {
    tsan::Ignore ignore;
    machine.operation();
    Products& products = own_products(wait_name);
    const Named named{registers, pending};
    const std::uint32_t before = products.completed;
    meet_warpgroup(wait_name, &named, site, complete_groups);
    for (std::uint32_t group = before + 1; group <= products.completed; ++group)
        tsan::acquire(products.done_tokens[group % products.done_tokens.size()]);
}

void check_products_at_exit(const Thread& thread, Site site) {
    const auto& operations = thread.cta->warpgroups[thread.index / warpgroup_size].products.operations;
    if (!operations.empty())
        machine.report("the thread exits with " + std::to_string(operations.size()) +
                           " wgmma under way that no wgmma_wait_group covered; the oldest was issued at " +
                           text(operations.front().site),
                       site);
}

}  // namespace emulator
