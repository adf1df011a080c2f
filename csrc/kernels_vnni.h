// The quantised linear layer with AVX-512's byte products. The integer sums are exact and the float32 ones in the same
// order, so the bits are those of linear_int8 in kernels_linear.h.

// R rows by P panels: integer sums of a group stay in registers, float sums in the first-level cache.
template <int R, int P>
void vnni_tile(const Int8Weight& w, const Int8Rows& x, const OutRows& out, int64_t row, int64_t panel) {
    const int64_t width = w.groups * kGroup, stride = width * kPanel;
    const uint8_t* bytes = w.bytes + panel * stride;
    const float* scales = w.scales + panel * w.groups * kPanel;
    const int8_t* integers = x.integers + row * width;
    alignas(64) float sums[R][P][kPanel] = {};
    for (int64_t g = 0; g < w.groups; ++g) {
        __m512i exact[R][P];
        for (int r = 0; r < R; ++r)
            for (int p = 0; p < P; ++p) exact[r][p] = _mm512_set1_epi32(x.starts[(row + r) * w.groups + g]);
        for (int k = 0; k < kGroup; k += 4) {
            __m512i weights[P];
            for (int p = 0; p < P; ++p) {
                if (R > 1) prefetch(bytes + p * stride + k * kPanel + kAhead);
                weights[p] = _mm512_load_si512(bytes + p * stride + k * kPanel);
            }
            for (int r = 0; r < R; ++r) {
                int32_t four;
                std::memcpy(&four, integers + r * width + k, sizeof four);
                const __m512i each = _mm512_set1_epi32(four);
                for (int p = 0; p < P; ++p) exact[r][p] = _mm512_dpbusd_epi32(exact[r][p], weights[p], each);
            }
        }
        for (int p = 0; p < P; ++p) {
            const Wide scale = wide_load(scales + p * w.groups * kPanel);
            for (int r = 0; r < R; ++r) {
                const Wide both = scale * wide_splat(x.scales[(row + r) * w.groups + g]);
                wide_store(sums[r][p], fma(_mm512_cvtepi32_ps(exact[r][p]), both, wide_load(sums[r][p])));
            }
        }
        bytes += kGroup * kPanel;
        scales += kPanel;
        integers += kGroup;
    }
    for (int r = 0; r < R; ++r)
        for (int p = 0; p < P; ++p) write_outputs(out, row + r, panel + p, w.outputs, sums[r][p]);
}

template <int P>
void vnni_rows(const Int8Weight& w, const Int8Rows& x, const OutRows& out, Range rows, int64_t panel) {
    int64_t row = rows.begin;
    for (; row + 8 <= rows.end; row += 8) vnni_tile<8, P>(w, x, out, row, panel);
    switch (rows.end - row) {
        case 7: vnni_tile<7, P>(w, x, out, row, panel); break;
        case 6: vnni_tile<6, P>(w, x, out, row, panel); break;
        case 5: vnni_tile<5, P>(w, x, out, row, panel); break;
        case 4: vnni_tile<4, P>(w, x, out, row, panel); break;
        case 3: vnni_tile<3, P>(w, x, out, row, panel); break;
        case 2: vnni_tile<2, P>(w, x, out, row, panel); break;
        case 1: vnni_tile<1, P>(w, x, out, row, panel); break;
    }
}

void linear_vnni(const Int8Weight& w, const Int8Rows& x, const OutRows& out, Range rows, Range panels) {
    int64_t panel = panels.begin;
    for (; panel + 2 <= panels.end; panel += 2) vnni_rows<2>(w, x, out, rows, panel);
    if (panel < panels.end) vnni_rows<1>(w, x, out, rows, panel);
}
