// The quantised linear layer with AVX-512's byte products. The integer sums are exact and the float32 ones in the same
// order, so the bits are those of linear_int8 in kernels_linear.h.

template <int R>
void vnni_tile(const Int8Weight& w, const Int8Rows& x, const OutRows& out, int64_t row, int64_t panel) {
    const int64_t width = w.groups * kGroup;
    const uint8_t* bytes = w.bytes + panel * width * kPanel;
    const float* scales = w.scales + panel * w.groups * kPanel;
    const int8_t* integers = x.integers + row * width;
    Wide sums[R];
    for (int r = 0; r < R; ++r) sums[r] = wide_splat(0.0f);
    for (int64_t g = 0; g < w.groups; ++g) {
        __m512i exact[R];
        for (int r = 0; r < R; ++r) exact[r] = _mm512_set1_epi32(x.starts[(row + r) * w.groups + g]);
        for (int k = 0; k < kGroup; k += 4) {
            if (R > 2) fetch_weights(bytes + k * kPanel);
            const __m512i weights = _mm512_load_si512(bytes + k * kPanel);
            for (int r = 0; r < R; ++r) {
                int32_t four;
                std::memcpy(&four, integers + r * width + k, sizeof four);
                exact[r] = _mm512_dpbusd_epi32(exact[r], weights, _mm512_set1_epi32(four));
            }
        }
        const Wide scale = wide_load(scales);
        for (int r = 0; r < R; ++r) {
            const Wide both = scale * wide_splat(x.scales[(row + r) * w.groups + g]);
            sums[r] = fma(_mm512_cvtepi32_ps(exact[r]), both, sums[r]);
        }
        bytes += kGroup * kPanel;
        scales += kPanel;
        integers += kGroup;
    }
    for (int r = 0; r < R; ++r) {
        float each[kPanel];
        store(each, sums[r]);
        write_outputs(out, row + r, panel, w.outputs, each);
    }
}

void linear_vnni(const Int8Weight& w, const Int8Rows& x, const OutRows& out, Range rows, Range panels) {
    for_row_tiles(rows, panels, [&](auto tile, int64_t row, int64_t panel) { vnni_tile<tile>(w, x, out, row, panel); });
}

Kernels with_byte_products(Kernels kernels) {
    kernels.linear_int8 = linear_vnni;
    return kernels;
}
