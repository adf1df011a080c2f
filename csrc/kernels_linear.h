// Linear layers: quantised and float32. See kernels_impl.h.

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

template <int N>
using Count = std::integral_constant<int, N>;

// Asks for weights that are read once per step, and come from memory: so far ahead, the wait for them is hidden. Into
// the second-level cache, which has room for more requests on their way than the first. One row or two compute so
// little that the hardware's own prefetching does as well.
inline void fetch_weights(const uint8_t* bytes) {
    constexpr int kAhead = 12288, kSecondLevel = 2;
    __builtin_prefetch(bytes + kAhead, 0, kSecondLevel);
}

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
            if (R > 2) fetch_weights(bytes + k * kPanel);
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

// Calls body(tile, row, panel) for every panel and, there, for tiles of four rows and what is left; a tile is how many.
template <class Body>
inline void for_row_tiles(Range rows, Range panels, Body body) {
    for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
        int64_t row = rows.begin;
        for (; row + 4 <= rows.end; row += 4) body(Count<4>(), row, panel);
        switch (rows.end - row) {
            case 3: body(Count<3>(), row, panel); break;
            case 2: body(Count<2>(), row, panel); break;
            case 1: body(Count<1>(), row, panel); break;
        }
    }
}

void linear_int8(const Int8Weight& w, const Int8Rows& x, const OutRows& out, Range rows, Range panels) {
    for_row_tiles(rows, panels, [&](auto tile, int64_t row, int64_t panel) { int8_tile<tile>(w, x, out, row, panel); });
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
