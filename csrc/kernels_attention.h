// Attention of a few query rows over one partition of keys. See kernels_impl.h.

// sums[r][i] += left(r) * right(i), keeping in registers what is fewer.
template <int R, int W, class Left, class Right>
inline void add_products(Wide (&sums)[R][W], Left left, Right right) {
    if constexpr (R < W) {
        Wide each[R];
        for (int r = 0; r < R; ++r) each[r] = left(r);
        for (int i = 0; i < W; ++i) {
            const Wide x = right(i);
            for (int r = 0; r < R; ++r) sums[r][i] = fma(each[r], x, sums[r][i]);
        }
    } else {
        Wide each[W];
        for (int i = 0; i < W; ++i) each[i] = right(i);
        for (int r = 0; r < R; ++r) {
            const Wide x = left(r);
            for (int i = 0; i < W; ++i) sums[r][i] = fma(x, each[i], sums[r][i]);
        }
    }
}

// Whether stores of such numbers are those that `rounds` says.
template <class T>
constexpr bool kRounds = !std::is_same_v<T, float> && !std::is_same_v<T, Float16>;

// Weights and queries count as zero below this where they are rounded. A bfloat16 from there on has steps of at least
// 2**-109, and eight-bit numbers as they are read of at least 2**-17 (an e4m3's): their products are multiples of
// 2**-126, and no sum of them is subnormal, which an instruction that multiplies pairs would take for zero.
constexpr float kLeastFactor = 0x1p-102f;

template <class V, class U>
inline V round_factor(V x) {
    const V zero = {};
    return x < kLeastFactor ? zero : round_to_bfloat16<V, U>(x);
}

// Runs of keys that a wide vector holds.
constexpr int kWideRuns = kWide / kLanes;
// A row of scores, with room for some that nobody looks at.
constexpr int kRowScores = kPartition + 8 * kLanes;

// Scores of W wide vectors of keys for R rows: sums over the head's dimensions in order, for every row and key.
// Prefetches what is read next: a decode reads a cache far larger than the processor's, in short runs at scattered
// addresses that the hardware does not foresee.
template <class T, int R, int W>
inline void score_runs(const TilePart& t, int first, float* scores) {
    const T* const* keys = reinterpret_cast<const T* const*>(t.runs->keys + first);
    const T* const* later = reinterpret_cast<const T* const*>(t.runs->later + first);
    const int64_t block_size = t.store->block_size, size = t.store->size;
    Wide sums[R][W];
    for (int r = 0; r < R; ++r)
        for (int i = 0; i < W; ++i) sums[r][i] = wide_splat(0.0f);
    for (int64_t n = 0; n < size; ++n) {
        const int64_t d = kRounds<T> ? n ^ 1 : n;
        for (int i = 0; i < W * kWideRuns; i += 2) prefetch(later[i] + d * block_size);
        add_products<R, W>(
            sums, [&](int r) { return wide_splat(t.q[r * size + d]); },
            [&](int i) { return wide_keys(keys + i * kWideRuns, d * block_size); });
    }
    if constexpr (kTokenScales<T>) {
        for (int i = 0; i < W; ++i) {
            const Wide scale = wide_keys(t.runs->key_scales + first + i * kWideRuns, 0);
            for (int r = 0; r < R; ++r) sums[r][i] = sums[r][i] * scale;
        }
    }
    for (int r = 0; r < R; ++r)
        for (int i = 0; i < W; ++i) store(scores + r * kRowScores + i * kWide, sums[r][i]);
}

// Scores of the partition's first `keys` keys and, to fill the last vectors, of some that nobody looks at.
template <class T, int R>
inline void score_rows(const TilePart& t, int keys, float* scores) {
    constexpr int W = width_for(R);
    static_assert(W * kWideRuns <= KeyRuns::kSpare);
    for (int k = 0; k < keys; k += W * kWide) score_runs<T, R, W>(t, k / kLanes, scores + k);
}

// Turns the first `runs` runs of scores into exponentials of what they exceed `largest` by, and returns their sum,
// which is of eight lanes' sums however wide a vector is.
template <class T>
inline float exponentials_less(float* scores, int runs, float largest) {
    F8 sums = splat(0.0f);
    int i = 0;
    for (; i + kWideRuns <= runs; i += kWideRuns) {
        Wide each = exp_lanes<Wide, WideBits>(wide_load(scores + i * kLanes) - largest);
        if constexpr (kRounds<T> && !kTokenScales<T>) each = round_factor<Wide, WideBits>(each);
        store(scores + i * kLanes, each);
        sums = add_runs(sums, each);
    }
    for (; i < runs; ++i) {
        F8 each = exp_lanes<F8, U8>(load(scores + i * kLanes) - largest);
        if constexpr (kRounds<T> && !kTokenScales<T>) each = round_factor<F8, U8>(each);
        store(scores + i * kLanes, each);
        sums = sums + each;
    }
    return sum_lanes(sums);
}

// How many runs of scores a row sees.
inline int runs_of(int visible) { return (visible + kLanes - 1) / kLanes; }

// A row's largest score. Keys the row does not see (and what their slots hold) count as -infinity from then on.
inline float largest_score(float* scores, int visible) {
    const int whole = visible / kLanes;
    if (visible % kLanes)
        store(scores + whole * kLanes, load_some(scores + whole * kLanes, visible % kLanes, -kInfinity));
    F8 best = splat(-kInfinity);
    for (int i = 0; i < runs_of(visible); ++i) best = larger(load(scores + i * kLanes), best);
    return largest_lane(best);
}

// Multiplies a row's exponentials by the scales of the values they weigh, and rounds then.
inline void scale_row(const TilePart& t, int visible, float* weights) {
    for (int i = 0; i < runs_of(visible); ++i) {
        const F8 scaled = load(weights + i * kLanes) * load(t.runs->value_scales[i]);
        store(weights + i * kLanes, round_factor<F8, U8>(scaled));
    }
}

// Calls body(value, ahead, key) for the partition's keys [begin, end), in the order in which they are added: the key's
// value and one read later. `begin` is even.
template <class T, class Body>
inline void for_values(const TilePart& t, int begin, int end, Body body) {
    constexpr int kRunsAhead = 4;
    const T* const* runs = reinterpret_cast<const T* const*>(t.runs->values);
    while (begin < end) {
        const int run = begin / kLanes, stop = end < (run + 1) * kLanes ? end : (run + 1) * kLanes;
        const T* value = runs[run] + begin % kLanes * t.store->size;
        const T* ahead = runs[run + kRunsAhead] + begin % kLanes * t.store->size;
        for (; begin < stop; ++begin, value += t.store->size, ahead += t.store->size) {
            // Of two tokens, the second one first.
            const int over = !kRounds<T> ? 0 : begin % 2 ? -1 : begin + 1 < stop ? 1 : 0;
            body(value + over * t.store->size, ahead, begin + over);
        }
    }
}

// Adds weight * value over the keys [begin, end), in order, for R rows and N wide vectors of dimensions. Prefetches.
template <class T, int R, int N>
inline void add_vectors(const TilePart& t, int begin, int end, int64_t d, const float* weights, float* output) {
    constexpr int kLine = 64 / sizeof(T);
    const int64_t size = t.store->size;
    Wide sums[R][N];
    for (int r = 0; r < R; ++r)
        for (int i = 0; i < N; ++i) sums[r][i] = wide_load(output + r * size + d + i * kWide);
    for_values<T>(t, begin, end, [&](const T* value, const T* ahead, int k) {
        for (int i = 0; i < N * kWide; i += kLine) prefetch(ahead + d + i);
        add_products<R, N>(
            sums, [&](int r) { return wide_splat(weights[r * kRowScores + k]); },
            [&](int i) { return wide_load(value + d + i * kWide); });
    });
    for (int r = 0; r < R; ++r)
        for (int i = 0; i < N; ++i) store(output + r * size + d + i * kWide, sums[r][i]);
}

template <class T, int R>
inline void add_keys(const TilePart& t, int begin, int end, const float* weights, float* output) {
    constexpr int N = width_for(R);
    const int64_t size = t.store->size;
    int64_t d = 0;
    for (; d + N * kWide <= size; d += N * kWide) add_vectors<T, R, N>(t, begin, end, d, weights, output);
    for (; d + 2 * kWide <= size; d += 2 * kWide) add_vectors<T, R, 2>(t, begin, end, d, weights, output);
    for (; d + kWide <= size; d += kWide) add_vectors<T, R, 1>(t, begin, end, d, weights, output);
    for (; d < size; ++d) {
        for (int r = 0; r < R; ++r) {
            float* sum = output + r * size + d;
            for_values<T>(t, begin, end, [&](const T* value, const T*, int k) {
                *sum = fma(weights[r * kRowScores + k], widen(value[d]), *sum);
            });
        }
    }
}

// The fewest and the most of the partition's keys that a row of the tile sees.
struct Seen {
    int least;
    int most;
};

inline Seen seen_by(const TilePart& t) {
    Seen seen{kPartition, 0};
    for (int r = 0; r < t.rows; ++r) {
        seen.least = t.visible[r] < seen.least ? t.visible[r] : seen.least;
        seen.most = t.visible[r] > seen.most ? t.visible[r] : seen.most;
    }
    return seen;
}

template <class T, int R>
void attend_rows(const TilePart& t, const Softmax& out) {
    alignas(64) float scores[R * kRowScores];
    Seen seen = seen_by(t);
    if constexpr (kRounds<T>) seen.least &= ~1;
    const int64_t size = t.store->size;
    score_rows<T, R>(t, seen.most, scores);
    // All of one before the other: a row's largest is waited for while others' are sought.
    for (int r = 0; r < R; ++r) out.largest[r] = largest_score(scores + r * kRowScores, t.visible[r]);
    for (int r = 0; r < R; ++r)
        out.total[r] = exponentials_less<T>(scores + r * kRowScores, runs_of(t.visible[r]), out.largest[r]);
    if constexpr (kTokenScales<T>)
        for (int r = 0; r < R; ++r) scale_row(t, t.visible[r], scores + r * kRowScores);
    std::memset(out.output, 0, R * size * sizeof(float));
    add_keys<T, R>(t, 0, seen.least, scores, out.output);
    for (int r = 0; r < R; ++r)
        add_keys<T, 1>(t, seen.least, t.visible[r], scores + r * kRowScores, out.output + r * size);
}

template <class T>
void attend_store(const TilePart& t, const Softmax& out) {
    switch (t.rows) {
        case 1: attend_rows<T, 1>(t, out); break;
        case 2: attend_rows<T, 2>(t, out); break;
        case 3: attend_rows<T, 3>(t, out); break;
        case 4: attend_rows<T, 4>(t, out); break;
        case 5: attend_rows<T, 5>(t, out); break;
        case 6: attend_rows<T, 6>(t, out); break;
    }
}

void attend(const TilePart& t, const Softmax& out) {
    switch (t.store->type) {
        case StoreType::kFloat32: attend_store<float>(t, out); break;
        case StoreType::kBfloat16: attend_store<Bfloat16>(t, out); break;
        case StoreType::kBfloat16Pairs: break;  // kernels_pairs.h, where there is one; a store is refused elsewhere
        case StoreType::kFloat16: attend_store<Float16>(t, out); break;
        case StoreType::kFp8E4m3: attend_store<Fp8E4m3>(t, out); break;
        case StoreType::kFp8E5m2: attend_store<Fp8E5m2>(t, out); break;
        case StoreType::kInt8: attend_store<Int8>(t, out); break;
    }
}

// To nearest even, a NaN to a quiet one, and to zero what is smaller than kLeastFactor.
void round_row(float* x, int64_t size, Bfloat16* rounded) {
    for (int64_t i = 0; i < size; i += kLanes) {
        const int64_t count = size - i < kLanes ? size - i : kLanes;
        const F8 each = load_some(x + i, count, 0.0f);
        const U8 bits = (U8)each, magnitude = bits & 0x7fffffffu;
        U8 kept = (U8)round_to_bfloat16<F8, U8>(each);
        kept = magnitude > 0x7f800000u ? (bits & 0xffff0000u) | 0x400000u : kept;
        kept = magnitude < bits_of(kLeastFactor) ? bits & 0x80000000u : kept;
        store_some(x + i, (F8)kept, count);
        for (int64_t j = 0; j < count; ++j) rounded[i + j].bits = static_cast<uint16_t>(kept[j] >> 16);
    }
}

void merge_row(const Softmax& state, const Softmax& part, int row, int64_t size) {
    const float before = state.largest[row], after = part.largest[row];
    const float largest = after > before ? after : before;
    const float keep = exp1(before - largest), take = exp1(after - largest);
    state.largest[row] = largest;
    state.total[row] = state.total[row] * keep + part.total[row] * take;
    float* __restrict to = state.output + row * size;
    const float* __restrict from = part.output + row * size;
    for (int64_t d = 0; d < size; ++d) to[d] = to[d] * keep + from[d] * take;
}
