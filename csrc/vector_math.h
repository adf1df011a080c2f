// Arithmetic over eight lanes that all instruction sets share. See kernels_impl.h.

typedef uint32_t U8 __attribute__((vector_size(32)));

constexpr float kInfinity = __builtin_inff();

inline F8 larger(F8 a, F8 b) { return a > b ? a : b; }

// exp to about 1e-7 relative (Cephes' polynomial) of at most 88; 0 below -87.3, and NaN for NaN. Of 0 it is exactly 1.
// V is a vector of floats, U one of as many unsigned integers.
template <class V, class U>
inline V exp_lanes(V x) {
    const V zero = {};
    const V shifter = zero + 12582912.0f;  // 1.5 * 2**23: adding it rounds to an integer, kept in the low bits
    const V shifted = fma(x, zero + 1.44269504088896341f, shifter);
    const V n = shifted - shifter;
    V r = fma(n, zero + -0.693359375f, x);
    r = fma(n, zero + 2.12194440e-4f, r);
    V p = zero + 1.9875691500e-4f;
    p = fma(p, r, zero + 1.3981999507e-3f);
    p = fma(p, r, zero + 8.3334519073e-3f);
    p = fma(p, r, zero + 4.1665795894e-2f);
    p = fma(p, r, zero + 1.6666665459e-1f);
    p = fma(p, r, zero + 5.0000001201e-1f);
    const V result = fma(p * r, r, r + 1.0f);
    const U power = ((U)shifted << 23) + (127u << 23);  // of 2; wraps only where the result is not used
    return x < -87.3f ? zero : result * (V)power;
}

// Beyond 88, exp of that.
inline F8 exp8(F8 x) { return exp_lanes<F8, U8>(x > 88.0f ? splat(88.0f) : x); }
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

// Rounds to nearest even. A NaN's lower half is clear.
template <class V, class U>
inline V round_to_bfloat16(V x) {
    const U bits = (U)x;
    return (V)((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);
}

template <class T>
inline void prefetch(const T* p) {
    __builtin_prefetch(p, 0, 3);
}
