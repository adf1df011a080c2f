// Operations on one row: norm, gated activation, rotary and cache write, and the passes over logits.
// See kernels_impl.h.

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

template <class T>
int64_t write_slot(const float* keys, const float* values, int64_t slot, const Store& s) {
    const int64_t block = slot / s.block_size, offset = slot % s.block_size;
    int64_t saturated = 0;
    for (int64_t head = 0; head < s.heads; ++head, keys += s.size, values += s.size) {
        const int64_t first = (block * s.heads + head) * s.block_size;
        T* key = static_cast<T*>(s.keys) + first * s.size + offset;
        T* value = static_cast<T*>(s.values) + (first + offset) * s.size;
        if constexpr (kHeadScales<T>) {
            saturated += put_scaled(keys, s.size, static_cast<const float*>(s.key_scales)[head], key, s.block_size);
            saturated += put_scaled(values, s.size, static_cast<const float*>(s.value_scales)[head], value, 1);
        } else if constexpr (kTokenScales<T>) {
            static_cast<Bfloat16*>(s.key_scales)[first + offset] = put_integers(keys, s.size, key, s.block_size);
            static_cast<Bfloat16*>(s.value_scales)[first + offset] = put_integers(values, s.size, value, 1);
        } else {
            put_vector(keys, s.size, key, s.block_size);
            put_vector(values, s.size, value, 1);
        }
    }
    return saturated;
}

// The same where two dimensions of a key lie side by side, and a value beside that of the token before or after.
void write_pairs(const float* keys, const float* values, int64_t slot, const Store& s) {
    const int64_t block = slot / s.block_size, offset = slot % s.block_size;
    for (int64_t head = 0; head < s.heads; ++head, keys += s.size, values += s.size) {
        const int64_t first = (block * s.heads + head) * s.block_size;
        Pair* key = static_cast<Pair*>(s.keys) + first * s.size / 2 + offset;
        for (int64_t d = 0; d < s.size; d += 2, key += s.block_size) {
            Pair both;
            put(&both.even, keys[d]);
            put(&both.odd, keys[d + 1]);
            *key = both;
        }
        Bfloat16* value = static_cast<Bfloat16*>(s.values) + (first + offset / 2 * 2) * s.size + offset % 2;
        put_vector(values, s.size, value, 2);
    }
}

// Asks for the lines that a token's keys and values will be written to: one for every dimension of a key or two, far
// apart.
void fetch_slot(int64_t slot, const Store& s) {
    constexpr int64_t kLine = 64;
    const int64_t block = slot / s.block_size, offset = slot % s.block_size, bytes = slot_bytes(s.type);
    const int64_t numbers = side_by_side(s.type), row = s.block_size * bytes * numbers;
    const int64_t step = row < kLine ? kLine / row : 1;
    for (int64_t head = 0; head < s.heads; ++head) {
        const int64_t first = (block * s.heads + head) * s.block_size;
        const char* key = static_cast<const char*>(s.keys) + (first * s.size + offset * numbers) * bytes;
        for (int64_t d = 0; d < s.size / numbers; d += step) __builtin_prefetch(key + d * row, 1);
        const char* value = static_cast<const char*>(s.values) + (first + offset / numbers * numbers) * s.size * bytes;
        for (int64_t at = 0; at < s.size * bytes * numbers; at += kLine) __builtin_prefetch(value + at, 1);
    }
}

int64_t rotary_row(const RotaryRow& row, const Store& s) {
    if (row.slot >= 0) fetch_slot(row.slot, s);
    for (int64_t head = 0; head < row.heads + s.heads; ++head) {
        float* __restrict left = row.qkv + head * s.size;
        float* __restrict right = left + row.half;
        for (int64_t i = 0; i < row.half; ++i) {
            const float a = left[i], b = right[i];
            left[i] = a * row.cos[i] - b * row.sin[i];
            right[i] = b * row.cos[i] + a * row.sin[i];
        }
    }
    if (row.slot < 0) return 0;
    const float* keys = row.qkv + row.heads * s.size;
    const float* values = keys + s.heads * s.size;
    switch (s.type) {
        case StoreType::kFloat32: return write_slot<float>(keys, values, row.slot, s);
        case StoreType::kBfloat16: return write_slot<Bfloat16>(keys, values, row.slot, s);
        case StoreType::kBfloat16Pairs: write_pairs(keys, values, row.slot, s); return 0;
        case StoreType::kFloat16: return write_slot<Float16>(keys, values, row.slot, s);
        case StoreType::kFp8E4m3: return write_slot<Fp8E4m3>(keys, values, row.slot, s);
        case StoreType::kFp8E5m2: return write_slot<Fp8E5m2>(keys, values, row.slot, s);
        case StoreType::kInt8: return write_slot<Int8>(keys, values, row.slot, s);
    }
    return 0;
}

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
