// Attention's vectors of sixteen lanes: see kernels_attention.h. Included after immintrin.h and avx_vectors.h. Every
// lane computes what eight lanes would: the bits of results are those of AVX2.

typedef __m512 Wide;
typedef uint32_t WideBits __attribute__((vector_size(64)));
constexpr int kWide = 2 * kLanes;

// How many wide vectors of keys or dimensions R rows take at a time: enough sums to keep the multipliers busy, and few
// enough for thirty-two registers. A head's size is often four vectors.
constexpr int width_for(int) { return 4; }

inline Wide fma(Wide a, Wide b, Wide c) { return _mm512_fmadd_ps(a, b, c); }
inline Wide wide_splat(float x) { return _mm512_set1_ps(x); }
inline void store(float* p, Wide x) { _mm512_storeu_ps(p, x); }
inline F8 lower(Wide x) { return _mm512_castps512_ps256(x); }
inline F8 upper(Wide x) { return _mm512_extractf32x8_ps(x, 1); }
inline Wide join(F8 a, F8 b) { return _mm512_insertf32x8(_mm512_castps256_ps512(a), b, 1); }

inline Wide wide_load(const float* p) { return _mm512_loadu_ps(p); }
inline Wide wide_load(const Float16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Wide widened_bfloat16(__m256i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
inline Wide wide_load(const Bfloat16* p) {
    return widened_bfloat16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Wide wide_load(const Int8* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline Wide wide_load(const Fp8E5m2* p) {
    const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm512_cvtph_ps(_mm256_slli_epi16(wide, 8));
}
// See the load of eight.
inline Wide wide_load(const Fp8E4m3* p) {
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i bits = _mm256_slli_epi16(wide, 7);
    const __m256i carried = _mm256_add_epi16(bits, _mm256_set1_epi16(1 << 7));
    return _mm512_cvtph_ps(_mm256_xor_si256(bits, _mm256_and_si256(carried, _mm256_set1_epi16(1 << 14))));
}

// The element at `offset` of each of two runs' keys. Runs of one block lie side by side.
template <class T>
inline Wide wide_keys(const T* const* runs, int64_t offset) {
    if (runs[1] == runs[0] + kLanes) return wide_load(runs[0] + offset);
    return join(load(runs[0] + offset), load(runs[1] + offset));
}

// Adds each run of a wide vector to eight sums.
inline F8 add_runs(F8 sums, Wide x) { return (sums + lower(x)) + upper(x); }
