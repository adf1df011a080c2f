#include "pool.h"

#include <chrono>

namespace pageinn {
namespace {

// A decode step calls a kernel every few microseconds: waking a parked thread each time would cost more than the work.
constexpr auto kSpin = std::chrono::microseconds(60);
constexpr int kPausesPerLook = 32;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
}

// Waits until ready() or until the spinning time is over; says whether it was ready.
template <class Ready>
bool spin(Ready ready) {
    const auto end = std::chrono::steady_clock::now() + kSpin;
    do {
        for (int i = 0; i < kPausesPerLook; ++i) {
            if (ready()) return true;
            pause();
        }
    } while (std::chrono::steady_clock::now() < end);
    return ready();
}

constexpr uint32_t untaken(uint64_t ticket) { return static_cast<uint32_t>(ticket); }

}  // namespace

Pool::Pool(int threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

Pool::~Pool() {
    {
        std::lock_guard<std::mutex> lock(parking_);
        stopping_ = true;
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
}

bool Pool::take_one() {
    uint64_t seen = ticket_.load(std::memory_order_acquire);
    while (untaken(seen) > 0) {
        if (ticket_.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel)) {
            call_(data_, count_ - untaken(seen));
            finished_.fetch_add(1, std::memory_order_release);
            return true;
        }
    }
    return false;
}

void Pool::run(uint32_t count, Call call, void* data) {
    std::lock_guard<std::mutex> turn(callers_);
    count_ = count;
    call_ = call;
    data_ = data;
    finished_.store(0, std::memory_order_relaxed);
    const uint64_t generation = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    ticket_.store(generation << 32 | count);  // sequentially consistent: ordered before the look at parked_
    if (parked_.load() > 0) {
        { std::lock_guard<std::mutex> lock(parking_); }
        wake_.notify_all();
    }
    while (take_one()) {
    }
    const auto done = [&] { return finished_.load(std::memory_order_acquire) == count; };
    // A worker may have been descheduled in the middle of its item: then give it our core.
    if (!spin(done)) {
        while (!done()) std::this_thread::yield();
    }
}

void Pool::work() {
    const auto ready = [this] { return untaken(ticket_.load()) > 0 || stopping_.load(); };
    while (true) {
        if (!spin(ready)) {
            std::unique_lock<std::mutex> lock(parking_);
            ++parked_;
            wake_.wait(lock, ready);
            --parked_;
        }
        if (stopping_) return;
        while (take_one()) {
        }
    }
}

}  // namespace pageinn
