// The kernels, written once over eight-lane vectors. Included by portable.cpp and avx2.cpp inside an anonymous
// namespace, after F8, I8, splat, load, store, fma, to_float, splat_bytes, dot, exponentials_of and kIsa.
//
// Every function does the same operations in the same order for a row (or a row and output, or a row and key),
// however many rows stand beside it: that is what makes results independent of batching. Tiles differ only in how
// many rows share a load. No operation here is left to the compiler to reorder or contract (-ffp-contract=off).

constexpr float kInfinity = __builtin_inff();

inline F8 larger(F8 a, F8 b) { return a > b ? a : b; }

// exp to about 1e-7 relative (Cephes' polynomial); 0 below -87.3, and NaN for NaN. exp8(0) is exactly 1.
inline F8 exp8(F8 x) {
    const F8 shifter = splat(12582912.0f);  // 1.5 * 2**23: adding it rounds to an integer, kept in the low bits
    const F8 clipped = x > 88.0f ? splat(88.0f) : x;
    const F8 shifted = fma(clipped, splat(1.44269504088896341f), shifter);
    const F8 n = shifted - shifter;
    F8 r = fma(n, splat(-0.693359375f), clipped);
    r = fma(n, splat(2.12194440e-4f), r);
    F8 p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    const F8 result = fma(p * r, r, r + 1.0f);
    const I8 power = ((I8)shifted << 23) + (127 << 23);
    return x < -87.3f ? splat(0.0f) : result * (F8)power;
}

inline float exp1(float x) { return exp8(splat(x))[0]; }

inline float sum_lanes(F8 x) {
    float v[kLanes];
    store(v, x);
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

inline float largest_lane(F8 x) {
    float v[kLanes];
    store(v, x);
    float best = v[0];
    for (int i = 1; i < kLanes; ++i) best = v[i] > best ? v[i] : best;
    return best;
}

// Eight values of which only the first `count` exist; the others are `fill`.
inline F8 load_some(const float* p, int64_t count, float fill) {
    float v[kLanes] = {fill, fill, fill, fill, fill, fill, fill, fill};
    std::memcpy(v, p, count * sizeof(float));
    return load(v);
}

inline void store_some(float* p, F8 x, int64_t count) {
    float v[kLanes];
    store(v, x);
    std::memcpy(p, v, count * sizeof(float));
}

template <class T>
inline void prefetch(const T* p) {
    __builtin_prefetch(p, 0, 3);
}

// ---- linear layers ------------------------------------------------------------------------------------------

void quantise_group(const float* x, int8_t* integers, float* scale, int32_t* start) {
    // The bits of a non-negative float order like the float, and put NaN above everything.
    int32_t bits = 0;
    for (int i = 0; i < kGroup; ++i) {
        int32_t each;
        std::memcpy(&each, x + i, sizeof each);
        each &= 0x7fffffff;
        bits = each > bits ? each : bits;
    }
    float largest;
    std::memcpy(&largest, &bits, sizeof largest);
    if (largest < 1e-30f) largest = 0;
    const bool finite = bits < 0x7f800000;
    *scale = finite ? largest / 127.0f : __builtin_nanf("");
    const float inverse = finite && largest > 0 ? 127.0f / largest : 0.0f;
    int32_t sum = 0;
    for (int i = 0; i < kGroup; ++i) {
        const float shifted = (finite ? x[i] : 0.0f) * inverse + 12582912.0f;  // rounds half to even
        int32_t each;
        std::memcpy(&each, &shifted, sizeof each);
        each -= 0x4b400000;
        integers[i] = static_cast<int8_t>(each);
        sum += each;
    }
    *start = -kWeightOffset * sum;
}

void quantise_row(const float* x, int64_t inputs, int8_t* integers, float* scales, int32_t* starts) {
    const int64_t full = inputs / kGroup;
    for (int64_t g = 0; g < full; ++g) quantise_group(x + g * kGroup, integers + g * kGroup, scales + g, starts + g);
    if (inputs % kGroup) {
        float padded[kGroup] = {};
        std::memcpy(padded, x + full * kGroup, (inputs % kGroup) * sizeof(float));
        quantise_group(padded, integers + full * kGroup, scales + full, starts + full);
    }
}

inline void write_outputs(const OutRows& out, int64_t row, int64_t panel, int64_t outputs, const float* sums) {
    float* to = out.values + row * out.stride + panel * kPanel;
    const int64_t count = outputs - panel * kPanel < kPanel ? outputs - panel * kPanel : kPanel;
    if (count == kPanel) {
        for (int i = 0; i < kPanel; ++i) to[i] = out.add ? to[i] + sums[i] : sums[i];
    } else {
        for (int i = 0; i < count; ++i) to[i] = out.add ? to[i] + sums[i] : sums[i];
    }
}

// Weights that are read once per step come from memory: so far ahead, the wait for them is hidden.
constexpr int kAhead = 4096;

template <int R>
void int8_tile(const Int8Weight& w, const Int8Rows& x, const OutRows& out, int64_t row, int64_t panel) {
    const int64_t width = w.groups * kGroup;
    const uint8_t* bytes = w.bytes + panel * width * kPanel;
    const float* scales = w.scales + panel * w.groups * kPanel;
    const int8_t* integers = x.integers + row * width;
    // In memory, because a tile's integer sums already fill the registers.
    alignas(32) float sums[R][kPanel] = {};
    for (int64_t g = 0; g < w.groups; ++g) {
        I8 exact[R][2];
        for (int r = 0; r < R; ++r) exact[r][0] = exact[r][1] = splat_int(x.starts[(row + r) * w.groups + g]);
        for (int k = 0; k < kGroup; k += 4) {
            prefetch(bytes + k * kPanel + kAhead);
            for (int r = 0; r < R; ++r) {
                const auto four = splat_bytes(integers + r * width + k);
                exact[r][0] = dot(exact[r][0], bytes + k * kPanel, four);
                exact[r][1] = dot(exact[r][1], bytes + k * kPanel + 32, four);
            }
        }
        const F8 left = load(scales), right = load(scales + kLanes);
        for (int r = 0; r < R; ++r) {
            const F8 scale = splat(x.scales[(row + r) * w.groups + g]);
            store(sums[r], fma(to_float(exact[r][0]), left * scale, load(sums[r])));
            store(sums[r] + kLanes, fma(to_float(exact[r][1]), right * scale, load(sums[r] + kLanes)));
        }
        bytes += kGroup * kPanel;
        scales += kPanel;
        integers += kGroup;
    }
    for (int r = 0; r < R; ++r) write_outputs(out, row + r, panel, w.outputs, sums[r]);
}

void linear_int8(const Int8Weight& w, const Int8Rows& x, const OutRows& out, Range rows, Range panels) {
    for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
        int64_t row = rows.begin;
        for (; row + 4 <= rows.end; row += 4) int8_tile<4>(w, x, out, row, panel);
        switch (rows.end - row) {
            case 3: int8_tile<3>(w, x, out, row, panel); break;
            case 2: int8_tile<2>(w, x, out, row, panel); break;
            case 1: int8_tile<1>(w, x, out, row, panel); break;
        }
    }
}

template <int R>
void float_tile(const FloatWeight& w, const FloatRows& x, const OutRows& out, int64_t row, int64_t panel) {
    const float* weights = w.values + panel * w.inputs * kPanel;
    const float* from = x.values + row * x.stride;
    F8 sums[R][2];
    for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = splat(0.0f);
    for (int64_t k = 0; k < w.inputs; ++k) {
        const F8 left = load(weights + k * kPanel), right = load(weights + k * kPanel + kLanes);
        for (int r = 0; r < R; ++r) {
            const F8 each = splat(from[r * x.stride + k]);
            sums[r][0] = fma(each, left, sums[r][0]);
            sums[r][1] = fma(each, right, sums[r][1]);
        }
    }
    for (int r = 0; r < R; ++r) {
        float both[kPanel];
        store(both, sums[r][0]);
        store(both + kLanes, sums[r][1]);
        write_outputs(out, row + r, panel, w.outputs, both);
    }
}

void linear_float(const FloatWeight& w, const FloatRows& x, const OutRows& out, Range rows, Range panels) {
    for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
        int64_t row = rows.begin;
        for (; row + 6 <= rows.end; row += 6) float_tile<6>(w, x, out, row, panel);
        switch (rows.end - row) {
            case 5: float_tile<5>(w, x, out, row, panel); break;
            case 4: float_tile<4>(w, x, out, row, panel); break;
            case 3: float_tile<3>(w, x, out, row, panel); break;
            case 2: float_tile<2>(w, x, out, row, panel); break;
            case 1: float_tile<1>(w, x, out, row, panel); break;
        }
    }
}

// ---- element-wise operations --------------------------------------------------------------------------------

void rms_norm_row(const float* x, const float* weight, int64_t size, float eps, float* out) {
    F8 squares[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
    int64_t i = 0;
    for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
        for (int j = 0; j < 4; ++j) {
            const F8 each = load(x + i + j * kLanes);
            squares[j] = fma(each, each, squares[j]);
        }
    }
    for (; i < size; i += kLanes) {
        const F8 each = load_some(x + i, size - i < kLanes ? size - i : kLanes, 0.0f);
        squares[0] = fma(each, each, squares[0]);
    }
    const float sum = sum_lanes((squares[0] + squares[1]) + (squares[2] + squares[3]));
    const float inverse = 1.0f / __builtin_sqrtf(sum / static_cast<float>(size) + eps);
    for (i = 0; i < size; ++i) out[i] = x[i] * inverse * weight[i];
}

void silu_mul_row(const float* gate, const float* up, int64_t size, float* out) {
    for (int64_t i = 0; i < size; i += kLanes) {
        const int64_t count = size - i < kLanes ? size - i : kLanes;
        const bool whole = count == kLanes;
        const F8 g = whole ? load(gate + i) : load_some(gate + i, count, 0.0f);
        const F8 u = whole ? load(up + i) : load_some(up + i, count, 0.0f);
        const F8 result = g / (exp8(-g) + 1.0f) * u;
        whole ? store(out + i, result) : store_some(out + i, result, count);
    }
}

inline void put(float* to, float x) { *to = x; }

inline void put(uint16_t* to, float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    // Half of what the dropped bits can hold, less one when the kept part is even: ties go to even.
    *to = static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

template <class T>
void write_slot(const float* keys, const float* values, int64_t slot, const Store& s) {
    const int64_t block = slot / s.block_size, offset = slot % s.block_size;
    for (int64_t head = 0; head < s.heads; ++head) {
        T* key = static_cast<T*>(s.keys) + (block * s.heads + head) * s.size * s.block_size + offset;
        T* value = static_cast<T*>(s.values) + ((block * s.heads + head) * s.block_size + offset) * s.size;
        for (int64_t d = 0; d < s.size; ++d) put(key + d * s.block_size, keys[head * s.size + d]);
        for (int64_t d = 0; d < s.size; ++d) put(value + d, values[head * s.size + d]);
    }
}

void rotary_row(const RotaryRow& row, const Store& s) {
    for (int64_t head = 0; head < row.heads + s.heads; ++head) {
        float* __restrict left = row.qkv + head * s.size;
        float* __restrict right = left + row.half;
        for (int64_t i = 0; i < row.half; ++i) {
            const float a = left[i], b = right[i];
            left[i] = a * row.cos[i] - b * row.sin[i];
            right[i] = b * row.cos[i] + a * row.sin[i];
        }
    }
    if (row.slot < 0) return;
    const float* keys = row.qkv + row.heads * s.size;
    const float* values = keys + s.heads * s.size;
    if (s.bfloat16) {
        write_slot<uint16_t>(keys, values, row.slot, s);
    } else {
        write_slot<float>(keys, values, row.slot, s);
    }
}

// ---- attention ----------------------------------------------------------------------------------------------

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
inline float widen(uint16_t x) {
    const uint32_t bits = static_cast<uint32_t>(x) << 16;
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
    if (t.store->bfloat16) {
        attend_store<uint16_t>(t, out);
    } else {
        attend_store<float>(t, out);
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

// ---- sampling -----------------------------------------------------------------------------------------------

Peak peak(const float* values, int64_t size) {
    constexpr int64_t kStretch = 64;
    F8 best = splat(-kInfinity);
    I8 nan = splat_int(0);
    for (int64_t i = 0; i < size; i += kLanes) {
        const F8 each = size - i < kLanes ? load_some(values + i, size - i, -kInfinity) : load(values + i);
        best = larger(each, best);
        nan |= (I8)(each != each);
    }
    Peak result{largest_lane(best), 0, false};
    for (int i = 0; i < kLanes; ++i) result.has_nan |= nan[i] != 0;
    for (int64_t i = 0; i < size; i += kStretch) {
        const int64_t end = size - i < kStretch ? size : i + kStretch;
        int found = 0;
        for (int64_t j = i; j < end; ++j) found |= values[j] == result.value;
        if (!found) continue;
        for (int64_t j = i; j < end; ++j) {
            if (values[j] == result.value) {
                result.index = static_cast<int32_t>(j);
                return result;
            }
        }
    }
    return result;
}

void exponentials(const float* values, int64_t size, double temperature, float largest, double* out) {
    exponentials_of(values, size, temperature, largest / temperature, out);
}

const Kernels kKernels = {kIsa,   quantise_row, linear_int8,  linear_float, rms_norm_row, rotary_row,
                          attend, merge_row,    silu_mul_row, peak,         exponentials};
