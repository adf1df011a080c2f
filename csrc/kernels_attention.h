// Attention of a few query rows over one partition of keys. See kernels_impl.h.

// Scores of W groups of eight keys for R rows: sums over the head's dimensions in order, for every row and key.
// Prefetches the groups `ahead`: a decode reads a cache far larger than the processor's, in short runs at scattered
// addresses that the hardware does not foresee.
template <class T, int R, int W>
inline void score_groups(const T* const* keys, const T* const* ahead, int64_t block_size, const float* q, int64_t size,
                         float* scores) {
    F8 sums[R][W];
    for (int r = 0; r < R; ++r)
        for (int w = 0; w < W; ++w) sums[r][w] = splat(0.0f);
    for (int64_t d = 0; d < size; ++d) {
        F8 each[R];
        for (int r = 0; r < R; ++r) each[r] = splat(q[r * size + d]);
        for (int w = 0; w < W; w += 2) prefetch(ahead[w] + d * block_size);
        for (int w = 0; w < W; ++w) {
            const F8 key = load(keys[w] + d * block_size);
            for (int r = 0; r < R; ++r) sums[r][w] = fma(each[r], key, sums[r][w]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int w = 0; w < W; ++w) store(scores + r * kPartition + w * kLanes, sums[r][w]);
}

template <class T, int R>
inline void score_rows(const TilePart& t, int groups, float* scores) {
    constexpr int W = R <= 3 ? 4 : 2;
    const Store& s = *t.store;
    const T* keys[kPartition / kLanes + 2 * W];
    for (int i = 0; i < groups; ++i) {
        const int64_t position = t.partition * kPartition + i * kLanes;
        const int64_t block = t.table[position / s.block_size];
        keys[i] = static_cast<const T*>(s.keys) + (block * s.heads + t.head) * s.size * s.block_size +
                  position % s.block_size;
    }
    for (int i = groups; i < groups + 2 * W; ++i) keys[i] = keys[groups - 1];
    int i = 0;
    for (; i + W <= groups; i += W)
        score_groups<T, R, W>(keys + i, keys + i + 2 * W, s.block_size, t.q, s.size, scores + i * kLanes);
    for (; i < groups; ++i)
        score_groups<T, R, 1>(keys + i, keys + i + 1, s.block_size, t.q, s.size, scores + i * kLanes);
}

// Turns a row's scores into exponentials. Keys the row does not see (and what their slots hold) count as -infinity.
inline void exponentiate_row(float* scores, int visible, float* largest, float* total) {
    const int whole = visible / kLanes;
    if (visible % kLanes)
        store(scores + whole * kLanes, load_some(scores + whole * kLanes, visible % kLanes, -kInfinity));
    const int seen = (visible + kLanes - 1) / kLanes;
    F8 best = splat(-kInfinity);
    for (int i = 0; i < seen; ++i) best = larger(load(scores + i * kLanes), best);
    *largest = largest_lane(best);
    F8 sums = splat(0.0f);
    for (int i = 0; i < seen; ++i) {
        const F8 each = exp8(load(scores + i * kLanes) - *largest);
        store(scores + i * kLanes, each);
        sums = sums + each;
    }
    *total = sum_lanes(sums);
}

// Adds weight * value over a run of keys, in order, for R rows and N * 8 dimensions. Prefetches the run `ahead`.
template <class T, int R, int N>
inline void add_values(const T* values, const T* ahead, int64_t size, int keys, const float* weights, float* output) {
    constexpr int kLine = 64 / sizeof(T);
    F8 sums[R][N];
    for (int r = 0; r < R; ++r)
        for (int n = 0; n < N; ++n) sums[r][n] = load(output + r * size + n * kLanes);
    for (int k = 0; k < keys; ++k) {
        for (int d = 0; d < N * kLanes; d += kLine) prefetch(ahead + k * size + d);
        F8 value[N];
        for (int n = 0; n < N; ++n) value[n] = load(values + k * size + n * kLanes);
        for (int r = 0; r < R; ++r) {
            const F8 weight = splat(weights[r * kPartition + k]);
            for (int n = 0; n < N; ++n) sums[r][n] = fma(weight, value[n], sums[r][n]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int n = 0; n < N; ++n) store(output + r * size + n * kLanes, sums[r][n]);
}

inline float widen(float x) { return x; }
inline float widen(Bfloat16 x) {
    const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}

template <class T, int R>
inline void add_run(const T* values, const T* ahead, int64_t size, int keys, const float* weights, float* output) {
    constexpr int N = R == 1 ? 8 : R <= 3 ? 4 : 2;
    int64_t d = 0;
    for (; d + N * kLanes <= size; d += N * kLanes)
        add_values<T, R, N>(values + d, ahead + d, size, keys, weights, output + d);
    for (; d + kLanes <= size; d += kLanes)
        add_values<T, R, 1>(values + d, ahead + d, size, keys, weights, output + d);
    for (; d < size; ++d)
        for (int r = 0; r < R; ++r)
            for (int k = 0; k < keys; ++k)
                output[r * size + d] =
                    fma(weights[r * kPartition + k], widen(values[k * size + d]), output[r * size + d]);
}

// Where the value of one of the partition's keys lies.
template <class T>
inline const T* value_at(const TilePart& t, int64_t key) {
    const Store& s = *t.store;
    const int64_t position = t.partition * kPartition + key;
    const int64_t block = t.table[position / s.block_size];
    return static_cast<const T*>(s.values) +
           ((block * s.heads + t.head) * s.block_size + position % s.block_size) * s.size;
}

// Adds the values of the partition's keys [begin, end), block by block.
template <class T, int R>
inline void add_keys(const TilePart& t, int begin, int end, const float* weights, float* output) {
    const int64_t block_size = t.store->block_size;
    while (begin < end) {
        const int64_t left = block_size - (t.partition * kPartition + begin) % block_size;
        const int keys = left < end - begin ? static_cast<int>(left) : end - begin;
        const T* values = value_at<T>(t, begin);
        const T* ahead = begin + 2 * block_size < end ? value_at<T>(t, begin + 2 * block_size) : values;
        add_run<T, R>(values, ahead, t.store->size, keys, weights + begin, output);
        begin += keys;
    }
}

template <class T, int R>
void attend_rows(const TilePart& t, const Softmax& out) {
    alignas(32) float scores[R * kPartition];
    int least = kPartition, most = 0;
    for (int r = 0; r < R; ++r) {
        least = t.visible[r] < least ? t.visible[r] : least;
        most = t.visible[r] > most ? t.visible[r] : most;
    }
    const int groups = (most + kLanes - 1) / kLanes;
    const int64_t size = t.store->size;
    score_rows<T, R>(t, groups, scores);
    for (int r = 0; r < R; ++r)
        exponentiate_row(scores + r * kPartition, t.visible[r], out.largest + r, out.total + r);
    std::memset(out.output, 0, R * size * sizeof(float));
    add_keys<T, R>(t, 0, least, scores, out.output);
    for (int r = 0; r < R; ++r)
        add_keys<T, 1>(t, least, t.visible[r], scores + r * kPartition, out.output + r * size);
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
        case StoreType::kFloat16: attend_store<Float16>(t, out); break;
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
