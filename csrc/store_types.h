// How the elements of a store are written, and how one of them is read. Included by every instruction set's file inside
// an anonymous namespace, after widen and narrow for Float16.

template <class T>
constexpr bool kHeadScales = false;
template <>
constexpr bool kHeadScales<Fp8E4m3> = true;
template <>
constexpr bool kHeadScales<Fp8E5m2> = true;
template <class T>
constexpr bool kTokenScales = false;
template <>
constexpr bool kTokenScales<Int8> = true;

inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

inline float widen(float x) { return x; }
inline float widen(Bfloat16 x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }
inline float widen(Int8 x) { return x.value; }
inline float widen(Fp8E5m2 x) { return widen(Float16{static_cast<uint16_t>(x.bits << 8)}); }
inline float widen(Fp8E4m3 x) {
    const bool is_nan = (x.bits & 0x7f) == 0x7f;
    const uint32_t half = (x.bits & 0x80u) << 8 | (x.bits & 0x7fu) << 7;
    return widen(Float16{static_cast<uint16_t>(is_nan ? 0x7e00u : half)});
}

// put() returns whether the number was cut to the largest there is.
inline bool put(float* to, float x) {
    *to = x;
    return false;
}

inline bool put(Float16* to, float x) {
    *to = narrow(x);
    return false;
}

inline bool put(Bfloat16* to, float x) {
    const uint32_t bits = bits_of(x);
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    // Half of what the dropped bits can hold, less one when the kept part is even: ties go to even.
    to->bits = static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    return false;
}

// An 8-bit float of kMantissa bits of mantissa and an exponent with kBias. kLargest: the bits of its largest number.
template <int kMantissa, int kBias, uint32_t kLargest>
inline bool put_fp8(uint8_t* to, float x) {
    constexpr int kDropped = 23 - kMantissa;
    constexpr uint32_t kRebias = (127u - kBias) << 23;
    const uint32_t sign = bits_of(x) >> 24 & 0x80u, magnitude = bits_of(x) & 0x7fffffffu;
    uint32_t result;
    bool saturated = false;
    if (magnitude > 0x7f800000u) {
        result = 0x7fu;
    } else if (magnitude > (kLargest << kDropped) + kRebias) {
        result = kLargest;
        saturated = true;
    } else if (magnitude < (1u << 23) + kRebias) {
        // Below the least normal number: adding what has that one's unit in its last place leaves the rounded bits.
        constexpr uint32_t kShifter = (127u + 24u - kBias - kMantissa) << 23;
        result = bits_of(float_of(magnitude) + float_of(kShifter)) - kShifter;
    } else {
        result = (magnitude + ((1u << (kDropped - 1)) - 1u) + (magnitude >> kDropped & 1u) - kRebias) >> kDropped;
    }
    *to = static_cast<uint8_t>(result | sign);
    return saturated;
}
inline bool put(Fp8E4m3* to, float x) { return put_fp8<3, 7, 0x7eu>(&to->bits, x); }
inline bool put(Fp8E5m2* to, float x) { return put_fp8<2, 15, 0x7bu>(&to->bits, x); }

// Writes x[size] to every stride-th element. Returns how many were cut to the largest number.
template <class T>
inline int64_t put_vector(const float* x, int64_t size, T* to, int64_t stride) {
    int64_t saturated = 0;
    for (int64_t d = 0; d < size; ++d) saturated += put(to + d * stride, x[d]);
    return saturated;
}

template <class T>
inline int64_t put_scaled(const float* x, int64_t size, float scale, T* to, int64_t stride) {
    int64_t saturated = 0;
    for (int64_t d = 0; d < size; ++d) saturated += put(to + d * stride, x[d] / scale);
    return saturated;
}

// Returns the scale: absmax / 127, rounded up so that nothing exceeds 127. With NaN or infinity all of x becomes NaN.
inline Bfloat16 put_integers(const float* x, int64_t size, Int8* to, int64_t stride) {
    constexpr float kShifter = 12582912.0f;  // 1.5 * 2**23: adding it rounds to an integer
    uint32_t largest = 0;
    for (int64_t d = 0; d < size; ++d) {
        const uint32_t magnitude = bits_of(x[d]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    const bool finite = largest < 0x7f800000u;
    const uint32_t exact = finite ? bits_of(float_of(largest) / 127.0f) : 0u;
    const Bfloat16 scale{static_cast<uint16_t>((exact + 0xffffu) >> 16)};
    const float divisor = widen(scale);
    for (int64_t d = 0; d < size; ++d)
        to[d * stride].value =
            divisor > 0 ? static_cast<int8_t>(static_cast<int>((x[d] / divisor + kShifter) - kShifter)) : int8_t{0};
    return finite ? scale : Bfloat16{0x7fc0u};
}
