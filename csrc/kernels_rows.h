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

inline void put(float* to, float x) { *to = x; }

inline void put(Float16* to, float x) { *to = narrow(x); }

inline void put(Bfloat16* to, float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    // Half of what the dropped bits can hold, less one when the kept part is even: ties go to even.
    to->bits = static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
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
    switch (s.type) {
        case StoreType::kFloat32: write_slot<float>(keys, values, row.slot, s); break;
        case StoreType::kBfloat16: write_slot<Bfloat16>(keys, values, row.slot, s); break;
        case StoreType::kFloat16: write_slot<Float16>(keys, values, row.slot, s); break;
    }
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
