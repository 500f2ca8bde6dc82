#include "common/gpu/emulator/clock.h"

#include "common/gpu/emulator/machine.h"

namespace emulator {

Clock& Sync::clock() {
    if (clock_ == nullptr) clock_ = boost::make_local_shared<Clock>();
    return *clock_;
}

void Sync::release(Thread& thread) {
    learn(thread.past);
    clock().learn(thread.agent, thread.epoch++, thread.fenced_epoch);
    for (const Stamp& moved : thread.tensor.fenced) clock().learn(moved.agent, moved.epoch);
}

void Sync::acquire(Thread& thread) {
    if (clock_ == nullptr) return;
    if (std::find(joined_.begin(), joined_.end(), thread.past) != joined_.end()) {
        thread.past = clock_;
        return;
    }
    const auto same = [&](const std::pair<Past, Past>& given) { return given.first == thread.past; };
    auto given = std::find_if(given_.begin(), given_.end(), same);
    if (given == given_.end()) {
        const auto both = boost::make_local_shared<Clock>(*clock_);
        both->join(*thread.past);
        given = given_.insert(given_.end(), {thread.past, both});
    }
    thread.past = given->second;
}

void Sync::learn(unsigned agent, std::uint32_t epoch) { clock().learn(agent, epoch); }

void Sync::learn(const Past& past) {
    if (std::find(joined_.begin(), joined_.end(), past) != joined_.end()) return;
    clock().join(*past);
    joined_.push_back(past);
}

void learn(Thread& thread, unsigned agent, std::uint32_t epoch) {
    if (thread.past->known(agent) >= epoch) return;
    const auto more = boost::make_local_shared<Clock>(*thread.past);
    more->learn(agent, epoch);
    thread.past = more;
}

}  // namespace emulator
