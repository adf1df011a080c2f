// A small thread pool: persistent workers that spin briefly and then park, and a caller that takes part.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace pageinn {

class Pool {
public:
    // `threads` counts the caller: Pool(1) starts no worker.
    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls body(i) once for every i in [0, count), from several threads and in no particular order, and returns
    // when all have returned. Must not be nested; callers from several threads take turns. `body` must not throw.
    template <class Body>
    void parallel_for(int64_t count, Body&& body) {
        if (count <= 1 || workers_.empty()) {
            for (int64_t i = 0; i < count; ++i) body(i);
            return;
        }
        using Plain = std::remove_reference_t<Body>;
        run(static_cast<uint32_t>(count), [](void* data, uint32_t i) { (*static_cast<Plain*>(data))(i); },
            const_cast<void*>(static_cast<const void*>(&body)));
    }

private:
    using Call = void (*)(void*, uint32_t);

    void run(uint32_t count, Call call, void* data);
    void work();
    bool take_one();

    // The generation of the job in the upper half, the items nobody has taken yet in the lower: one compare-and-swap
    // takes an item of exactly the job that was looked at, so a late worker can never run an item of a finished one.
    alignas(64) std::atomic<uint64_t> ticket_{0};
    alignas(64) std::atomic<uint32_t> finished_{0};
    alignas(64) std::atomic<int> parked_{0};
    std::atomic<bool> stopping_{false};

    // Written only between jobs; published by ticket_.
    uint32_t count_ = 0;
    Call call_ = nullptr;
    void* data_ = nullptr;

    std::mutex callers_;
    std::mutex parking_;
    std::condition_variable wake_;
    std::vector<std::thread> workers_;
};

}  // namespace pageinn
