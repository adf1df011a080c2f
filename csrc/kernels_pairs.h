// Attention over bfloat16 in pairs, of a store or of what kernels_widen_pairs.h makes of eight bits, by an instruction
// that adds the products of two pairs of numbers: two fused multiply-adds, the second number's first, that take
// subnormal numbers for zero. The bits are those of kernels_attention.h over the same numbers: always where they were
// eight bits (see kLeastFactor there), and where no number is subnormal if they are a store's. Included after that.

// So many rows or fewer wait for keys and values; more have others behind them, that find them in the cache.
constexpr int kFetching = 3;
constexpr int kPairVectors = width_for(kTile);

// sums[r][i] += the products of a pair of factors, factors[r * stride] and the next, with pairs[i].
template <int R, int N>
inline void add_pairs(Wide (&sums)[R][N], const Bfloat16* factors, int64_t stride, const __m512bh (&pairs)[N]) {
    for (int r = 0; r < R; ++r) {
        int32_t both;
        std::memcpy(&both, factors + r * stride, sizeof both);
        const __m512bh x = (__m512bh)_mm512_set1_epi32(both);
        for (int i = 0; i < N; ++i) sums[r][i] = _mm512_dpbf16_ps(sums[r][i], x, pairs[i]);
    }
}

// The pairs at `offset` of each of two runs' keys: as wide as floats, and moved like them.
inline __m512bh wide_key_pairs(const Pair* const* runs, int64_t offset) {
    return (__m512bh)wide_keys(reinterpret_cast<const float* const*>(runs), offset);
}

template <int R, bool kScaled>
inline void score_pairs(const TilePart& t, int keys, float* scores) {
    constexpr int N = kPairVectors;
    const int64_t block_size = t.store->block_size, size = t.store->size;
    for (int k = 0; k < keys; k += N * kWide) {
        const Pair* const* runs = reinterpret_cast<const Pair* const*>(t.runs->keys + k / kLanes);
        const Pair* const* later = reinterpret_cast<const Pair* const*>(t.runs->later + k / kLanes);
        Wide sums[R][N];
        for (int r = 0; r < R; ++r)
            for (int i = 0; i < N; ++i) sums[r][i] = wide_splat(0.0f);
        for (int64_t d = 0; d < size; d += 2) {
            const int64_t row = d / 2 * block_size;
            if constexpr (R <= kFetching)
                for (int i = 0; i < N * kWideRuns; i += 2) prefetch(later[i] + row);
            __m512bh pairs[N];
            for (int i = 0; i < N; ++i) pairs[i] = wide_key_pairs(runs + i * kWideRuns, row);
            add_pairs<R, N>(sums, t.q_bfloat16 + d, size, pairs);
        }
        if constexpr (kScaled) {
            for (int i = 0; i < N; ++i) {
                const Wide scale = wide_keys(t.runs->key_scales + k / kLanes + i * kWideRuns, 0);
                for (int r = 0; r < R; ++r) sums[r][i] = sums[r][i] * scale;
            }
        }
        for (int r = 0; r < R; ++r)
            for (int i = 0; i < N; ++i) store(scores + r * kRowScores + k + i * kWide, sums[r][i]);
    }
}

// Adds weight * value over the keys [begin, end), in order, for R rows and N wide vectors of dimensions. `begin` is
// even; `mask` leaves of a pair of values what is seen.
template <int R, int N, uint32_t mask>
inline void add_pair_vectors(const TilePart& t, int begin, int end, int64_t d, const Bfloat16* weights, float* output) {
    constexpr int kRunsAhead = 4;
    const Pair* const* runs = reinterpret_cast<const Pair* const*>(t.runs->values);
    const int64_t size = t.store->size;
    Wide sums[R][N];
    for (int r = 0; r < R; ++r)
        for (int i = 0; i < N; ++i) sums[r][i] = wide_load(output + r * size + d + i * kWide);
    for (int key = begin; key < end; key += 2) {
        const int64_t offset = key % kLanes / 2 * size + d;
        const Pair *at = runs[key / kLanes] + offset, *ahead = runs[key / kLanes + kRunsAhead] + offset;
        __m512bh pairs[N];
        for (int i = 0; i < N; ++i) {
            if constexpr (R <= kFetching) prefetch(ahead + i * kWide);
            pairs[i] = (__m512bh)_mm512_and_si512(_mm512_loadu_si512(at + i * kWide), _mm512_set1_epi32(mask));
        }
        add_pairs<R, N>(sums, weights + key, kRowScores, pairs);
    }
    for (int r = 0; r < R; ++r)
        for (int i = 0; i < N; ++i) store(output + r * size + d + i * kWide, sums[r][i]);
}

template <int R, uint32_t mask = ~0u>
inline void add_pair_keys(const TilePart& t, int begin, int end, const Bfloat16* weights, float* output) {
    constexpr int N = kPairVectors;
    const int64_t size = t.store->size;
    int64_t d = 0;
    for (; d + N * kWide <= size; d += N * kWide) add_pair_vectors<R, N, mask>(t, begin, end, d, weights, output);
    for (; d + kWide <= size; d += kWide) add_pair_vectors<R, 1, mask>(t, begin, end, d, weights, output);
    const Pair* const* runs = reinterpret_cast<const Pair* const*>(t.runs->values);
    for (; d < size; ++d) {
        for (int r = 0; r < R; ++r) {
            float* sum = output + r * size + d;
            const Bfloat16* weight = weights + r * kRowScores;
            for (int key = begin; key < end; key += 2) {
                const Pair value = runs[key / kLanes][key % kLanes / 2 * size + d];
                if (mask >> 16) *sum = fma(widen(weight[key + 1]), widen(value.odd), *sum);
                *sum = fma(widen(weight[key]), widen(value.even), *sum);
            }
        }
    }
}

// exponentials_less for the first `runs` runs of scores, rounded to bfloat16; kScaled: multiplied by `scales` before
// they are rounded, and not when they are summed. What is written behind those nobody looks at.
template <bool kScaled>
inline float narrow_exponentials(const float* scores, int runs, float largest, const Bfloat16* const* scales,
                                 Bfloat16* to) {
    F8 sums = splat(0.0f);
    for (int i = 0; i < runs; i += kWideRuns) {
        Wide each = exp_lanes<Wide, WideBits>(wide_load(scores + i * kLanes) - largest);
        const Wide weight = kScaled ? each * wide_keys(scales + i, 0) : each;
        const __m256i narrow = (__m256i)_mm512_cvtneps_pbh(weight < kLeastFactor ? wide_splat(0.0f) : weight);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i * kLanes), narrow);
        if constexpr (!kScaled) each = widened_bfloat16(narrow);
        sums = i + kWideRuns <= runs ? add_runs(sums, each) : sums + lower(each);
    }
    return sum_lanes(sums);
}

template <int R, bool kScaled>
void attend_pairs(const TilePart& t, const Softmax& out) {
    alignas(64) float scores[R * kRowScores];
    alignas(64) Bfloat16 weights[R * kRowScores];
    const Seen seen = seen_by(t);
    const int least = seen.least & ~1;
    const int64_t size = t.store->size;
    score_pairs<R, kScaled>(t, seen.most, scores);
    for (int r = 0; r < R; ++r) out.largest[r] = largest_score(scores + r * kRowScores, t.visible[r]);
    for (int r = 0; r < R; ++r) {
        const int64_t row = r * kRowScores;
        out.total[r] = narrow_exponentials<kScaled>(scores + row, runs_of(t.visible[r]), out.largest[r],
                                                    t.runs->value_scales, weights + row);
        // Where the last pair is half seen: whatever scale stands in the unseen slot.
        if constexpr (kScaled) weights[row + t.visible[r]] = Bfloat16{0};
    }
    std::memset(out.output, 0, R * size * sizeof(float));
    add_pair_keys<R>(t, 0, least, weights, out.output);
    for (int r = 0; r < R; ++r) {
        const int whole = t.visible[r] & ~1;
        const Bfloat16* row = weights + r * kRowScores;
        add_pair_keys<1>(t, least, whole, row, out.output + r * size);
        add_pair_keys<1, 0xffffu>(t, whole, t.visible[r], row, out.output + r * size);
    }
}

template <bool kScaled>
void attend_pair_rows(const TilePart& t, const Softmax& out) {
    switch (t.rows) {
        case 1: attend_pairs<1, kScaled>(t, out); break;
        case 2: attend_pairs<2, kScaled>(t, out); break;
        case 3: attend_pairs<3, kScaled>(t, out); break;
        case 4: attend_pairs<4, kScaled>(t, out); break;
        case 5: attend_pairs<5, kScaled>(t, out); break;
        case 6: attend_pairs<6, kScaled>(t, out); break;
    }
}

void attend_with_pairs(const TilePart& t, const Softmax& out) {
    if (t.store->type != StoreType::kBfloat16Pairs) return attend(t, out);
    t.store->key_scales ? attend_pair_rows<true>(t, out) : attend_pair_rows<false>(t, out);
}
