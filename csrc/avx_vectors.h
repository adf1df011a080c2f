// Eight lanes of AVX2, FMA and F16C. Included by avx2.cpp and those of AVX-512 inside an anonymous namespace, after
// immintrin.h.

typedef __m256 F8;
typedef int32_t I8 __attribute__((vector_size(32)));

inline F8 splat(float x) { return _mm256_set1_ps(x); }
inline I8 splat_int(int32_t x) { return (I8)_mm256_set1_epi32(x); }

inline F8 load(const float* p) { return _mm256_loadu_ps(p); }

inline F8 load(const Float16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline float widen(Float16 x) { return _cvtsh_ss(x.bits); }
inline Float16 narrow(float x) { return {_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)}; }

#include "store_types.h"

inline F8 load(const Bfloat16* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

// A float16 and an e5m2 have the same exponent. An e4m3's is half as wide, which leaves its numbers 256 times too
// small, subnormal ones too. Shifted so, bit 14 has the sign once more and must be clear, or set to make a NaN of all
// ones: adding one to those carries into it.
inline F8 load(const Fp8E4m3* p) {
    const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m128i bits = _mm_slli_epi16(wide, 7);
    const __m128i carried = _mm_add_epi16(bits, _mm_set1_epi16(1 << 7));
    return _mm256_cvtph_ps(_mm_xor_si128(bits, _mm_and_si128(carried, _mm_set1_epi16(1 << 14))));
}

inline F8 load(const Fp8E5m2* p) {
    const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return _mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), x));
}

inline F8 load(const Int8* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

inline void store(float* p, F8 x) { _mm256_storeu_ps(p, x); }

inline F8 fma(F8 a, F8 b, F8 c) { return _mm256_fmadd_ps(a, b, c); }
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

inline F8 to_float(I8 x) { return _mm256_cvtepi32_ps((__m256i)x); }

// Adds the four products of unsigned weight bytes and signed activation bytes to each of eight sums. The 16-bit sums
// of two products cannot saturate: 2 * 127 * 127 < 2**15.
inline __m256i splat_bytes(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}
inline I8 dot(I8 sums, const uint8_t* weights, __m256i x) {
    const __m256i w = _mm256_load_si256(reinterpret_cast<const __m256i*>(weights));
    const __m256i pairs = _mm256_maddubs_epi16(w, x);
    return (I8)_mm256_add_epi32((__m256i)sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

// exp in float64 to about 1e-15 relative: 2**n times the Taylor series on [-ln 2 / 2, ln 2 / 2].
inline __m256d exp4(__m256d x) {
    const __m256d shifter = _mm256_set1_pd(6755399441055744.0);  // 1.5 * 2**52: adding it rounds to an integer
    const __m256d shifted = _mm256_fmadd_pd(x, _mm256_set1_pd(1.4426950408889634), shifter);
    const __m256d n = _mm256_sub_pd(shifted, shifter);
    __m256d r = _mm256_fnmadd_pd(n, _mm256_set1_pd(6.93147180369123816490e-01), x);
    r = _mm256_fnmadd_pd(n, _mm256_set1_pd(1.90821492927058770002e-10), r);
    static const double inverse_factorials[] = {
        1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
        1.0 / 720,        1.0 / 120,       1.0 / 24,       1.0 / 6,       0.5,          1.0,         1.0};
    __m256d sum = _mm256_set1_pd(inverse_factorials[0]);
    for (int i = 1; i < 14; ++i) sum = _mm256_fmadd_pd(sum, r, _mm256_set1_pd(inverse_factorials[i]));
    const __m256i biased = _mm256_add_epi64(_mm256_castpd_si256(shifted), _mm256_set1_epi64x(1023));
    const __m256i power = _mm256_slli_epi64(biased, 52);
    const __m256d result = _mm256_mul_pd(sum, _mm256_castsi256_pd(power));
    return _mm256_andnot_pd(_mm256_cmp_pd(x, _mm256_set1_pd(-708.0), _CMP_LT_OQ), result);
}

inline void exponentials_of(const float* values, int64_t size, double temperature, double largest, double* out) {
    const __m256d divisor = _mm256_set1_pd(temperature), top = _mm256_set1_pd(largest);
    int64_t i = 0;
    for (; i + 4 <= size; i += 4) {
        const __m256d x = _mm256_cvtps_pd(_mm_loadu_ps(values + i));
        _mm256_storeu_pd(out + i, exp4(_mm256_sub_pd(_mm256_div_pd(x, divisor), top)));
    }
    if (i < size) {
        float tail[4] = {0, 0, 0, 0};
        double result[4];
        std::memcpy(tail, values + i, (size - i) * sizeof(float));
        const __m256d x = _mm256_cvtps_pd(_mm_loadu_ps(tail));
        _mm256_storeu_pd(result, exp4(_mm256_sub_pd(_mm256_div_pd(x, divisor), top)));
        std::memcpy(out + i, result, (size - i) * sizeof(double));
    }
}
