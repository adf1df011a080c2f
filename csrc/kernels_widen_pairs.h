// Eight-bit keys and values of a partition as bfloat16 in pairs: see kernels_widen.h, and kernels_pairs.h, after which
// this is included.

// Thirty-two numbers of eight bits as bfloat16, which holds them all. Seven bits are looked up, the eighth is the sign:
// an integer of -128 would be lost, and is never stored.
template <class T>
class Widener {
public:
    Widener() {
        for (int i = 0; i < 4; ++i) table_[i] = _mm512_load_si512(magnitudes().bits + 32 * i);
    }

    __m512i operator()(__m256i numbers) const {
        const __m512i wide = _mm512_cvtepi8_epi16(numbers);
        const __m512i index = std::is_same_v<T, Int8> ? _mm512_abs_epi16(wide) : wide;
        const __m512i lower = _mm512_permutex2var_epi16(table_[0], index, table_[1]);
        const __m512i upper = _mm512_permutex2var_epi16(table_[2], index, table_[3]);
        const __mmask32 above = _mm512_test_epi16_mask(index, _mm512_set1_epi16(0x40));
        const __m512i sign = _mm512_and_si512(wide, _mm512_set1_epi16(INT16_MIN));
        return _mm512_or_si512(_mm512_mask_mov_epi16(lower, above, upper), sign);
    }

private:
    struct Magnitudes {
        alignas(64) uint16_t bits[128];
    };

    static const Magnitudes& magnitudes() {
        static const Magnitudes known = [] {
            Magnitudes all;
            for (int i = 0; i < 128; ++i) {
                const uint8_t number = static_cast<uint8_t>(i);
                T each;
                std::memcpy(&each, &number, 1);
                all.bits[i] = static_cast<uint16_t>(bits_of(widen(each)) >> 16);
            }
            return all;
        }();
        return known;
    }

    __m512i table_[4];
};

inline __m256i interleaved(__m128i even, __m128i odd) {
    return _mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd));
}

inline __m128i eight_bytes(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
inline __m128i sixteen_bytes(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

template <class T>
inline Pair pair_of(T even, T odd) {
    const auto narrow = [](T x) { return Bfloat16{static_cast<uint16_t>(bits_of(widen(x)) >> 16)}; };
    return {narrow(even), narrow(odd)};
}

// Two runs of keys, each `size` rows of eight, `stride` apart, to size / 2 rows of sixteen pairs, kWidenedBlock apart.
template <class T>
inline void widen_keys(const Widener<T>& widened, const T* const* runs, const void* const* later, int64_t size,
                       int64_t stride, Pair* to) {
    const bool adjacent = runs[1] == runs[0] + kLanes;
    const auto row = [&](int64_t offset) {
        if (adjacent) return sixteen_bytes(runs[0] + offset);
        return _mm_unpacklo_epi64(eight_bytes(runs[0] + offset), eight_bytes(runs[1] + offset));
    };
    for (int64_t d = 0; d < size; d += 2, to += kWidenedBlock) {
        prefetch(static_cast<const T*>(later[0]) + d * stride);
        prefetch(static_cast<const T*>(later[1]) + d * stride);
        const __m128i even = row(d * stride), odd = row((d + 1) * stride);
        _mm512_storeu_si512(to, widened(interleaved(even, odd)));
    }
}

// The values of two tokens, `from` and the one behind it.
template <class T>
inline void widen_values(const Widener<T>& widened, const T* from, int64_t size, Pair* to) {
    int64_t d = 0;
    for (; d + 16 <= size; d += 16) {
        const __m128i even = sixteen_bytes(from + d), odd = sixteen_bytes(from + size + d);
        _mm512_storeu_si512(to + d, widened(interleaved(even, odd)));
    }
    for (; d < size; ++d) to[d] = pair_of(from[d], from[size + d]);
}

template <class T>
void widen_runs(const Store& s, int64_t count, KeyRuns& runs, Pair* to) {
    const Widener<T> widened;
    const WidenedRuns<Pair> pairs{to, s.size / 2};
    const T* const* from = reinterpret_cast<const T* const*>(runs.keys);
    for (int64_t i = 0; i < count; i += kWideRuns)
        widen_keys(widened, from + i, runs.later + i, s.size, s.block_size, pairs.key(i));
    for (int64_t i = 0; i < count; ++i)
        for (int t = 0; t < kLanes; t += 2)
            widen_values(widened, static_cast<const T*>(runs.values[i]) + t * s.size, s.size,
                         pairs.value(i) + t / 2 * s.size);
    pairs.point(runs, count);
}

void widen_to_pairs(const Store& s, int64_t count, KeyRuns& runs, void* room) {
    Pair* to = static_cast<Pair*>(room);
    switch (s.type) {
        case StoreType::kFp8E4m3: return widen_runs<Fp8E4m3>(s, count, runs, to);
        case StoreType::kFp8E5m2: return widen_runs<Fp8E5m2>(s, count, runs, to);
        case StoreType::kInt8: return widen_runs<Int8>(s, count, runs, to);
        default: break;  // nobody asks
    }
}
