// Eight-bit keys and values of a partition as bfloat16, for many tiles to attend to. See kernels_impl.h.

// Where they are put, `rows` numbers or pairs a token: keys in rows of kWidenedBlock tokens, and behind them values.
template <class T>
struct WidenedRuns {
    T* room;
    int64_t rows;

    T* key(int64_t run) const {
        const int64_t token = run * kLanes;
        return room + token / kWidenedBlock * kWidenedBlock * rows + token % kWidenedBlock;
    }
    T* value(int64_t run) const { return room + (kPartition + run * kLanes) * rows; }

    // Lets the first `count` runs be these.
    void point(KeyRuns& runs, int64_t count) const {
        for (int64_t i = 0; i < count + KeyRuns::kSpare; ++i) {
            const int64_t run = i < count ? i : count - 1;
            runs.keys[i] = runs.later[i] = key(run);
            runs.values[i] = value(run);
        }
    }
};

typedef uint16_t H8 __attribute__((vector_size(16)));

template <class T>
inline void widen_lanes(const T* from, Bfloat16* to) {
    const H8 narrow = __builtin_convertvector((U8)load(from) >> 16, H8);
    std::memcpy(to, &narrow, sizeof narrow);
}

// An e4m3 is what takes the longest to read: three times as many operations as a bfloat16.
void widen_e4m3(const Store& s, int64_t count, KeyRuns& runs, void* room) {
    const WidenedRuns<Bfloat16> widened{static_cast<Bfloat16*>(room), s.size};
    for (int64_t i = 0; i < count; ++i) {
        const Fp8E4m3* key = static_cast<const Fp8E4m3*>(runs.keys[i]);
        const Fp8E4m3* later = static_cast<const Fp8E4m3*>(runs.later[i]);
        Bfloat16* to = widened.key(i);
        for (int64_t d = 0; d < s.size; ++d) {
            prefetch(later + d * s.block_size);
            widen_lanes(key + d * s.block_size, to + d * kWidenedBlock);
        }
    }
    // Eight tokens of any size are whole vectors.
    for (int64_t i = 0; i < count; ++i)
        for (int64_t j = 0; j < kLanes * s.size; j += kLanes)
            widen_lanes(static_cast<const Fp8E4m3*>(runs.values[i]) + j, widened.value(i) + j);
    widened.point(runs, count);
}
