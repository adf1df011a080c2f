// The innermost functions in portable C++ (with the vector types that GCC and Clang give every target).
#include "kernels.h"

#include <cmath>
#include <cstring>
#include <type_traits>

namespace pageinn {
namespace {

typedef float F8 __attribute__((vector_size(32)));
typedef int32_t I8 __attribute__((vector_size(32)));

inline F8 splat(float x) { return F8{x, x, x, x, x, x, x, x}; }
inline I8 splat_int(int32_t x) { return I8{x, x, x, x, x, x, x, x}; }

inline F8 load(const float* p) {
    F8 x;
    std::memcpy(&x, p, sizeof x);
    return x;
}

// A float16's exponent is moved to float32's bias by an addition; what a subnormal one lacks is a subtraction away.
inline float widen(Float16 x) {
    constexpr uint32_t kExponent = 0x7c00u << 13;
    const uint32_t sign = (x.bits & 0x8000u) << 16;
    uint32_t bits = (x.bits & 0x7fffu) << 13;
    const uint32_t exponent = bits & kExponent;
    bits += (127u - 15u) << 23;
    if (exponent == kExponent) {  // infinity, or NaN, which becomes a quiet one
        bits += (128u - 16u) << 23;
        if (x.bits & 0x3ffu) bits |= 0x400000u;
    } else if (exponent == 0) {
        const float least = 6.103515625e-05f;  // 2**-14
        bits += 1u << 23;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        value -= least;
        std::memcpy(&bits, &value, sizeof bits);
    }
    bits |= sign;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// Round to nearest even, beyond the largest to infinity, NaN to a quiet NaN: bit for bit what the instruction does.
inline Float16 narrow(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    bits &= 0x7fffffffu;
    uint32_t half;
    if (bits > 0x7f800000u) {
        half = 0x7e00u | ((bits >> 13) & 0x3ffu);
    } else if (bits >= 0x47800000u) {  // 2**16; what is less may still round up to infinity
        half = 0x7c00u;
    } else if (bits < 0x38800000u) {  // 2**-14: adding 1/2 leaves a subnormal's bits, rounded, in the low end
        float value;
        std::memcpy(&value, &bits, sizeof value);
        value += 0.5f;
        std::memcpy(&half, &value, sizeof half);
        half -= 0x3f000000u;
    } else {
        half = (bits + 0xfffu + ((bits >> 13) & 1u) - (112u << 23)) >> 13;
    }
    return {static_cast<uint16_t>(half | sign)};
}

#include "store_types.h"

inline F8 load(const Float16* p) {
    F8 x = {};
    for (int i = 0; i < kLanes; ++i) x[i] = widen(p[i]);
    return x;
}

inline F8 load(const Bfloat16* p) {
    I8 bits = {};
    for (int i = 0; i < kLanes; ++i) bits[i] = static_cast<int32_t>(static_cast<uint32_t>(p[i].bits) << 16);
    return (F8)bits;
}

// What each byte of a format stands for, computed once.
template <class T>
struct Table {
    Table() {
        for (int bits = 0; bits < 256; ++bits) values[bits] = widen(T{static_cast<uint8_t>(bits)});
    }
    float values[256];
};
inline F8 load_bytes(const float* values, const uint8_t* p) {
    F8 x = {};
    for (int i = 0; i < kLanes; ++i) x[i] = values[p[i]];
    return x;
}
const Table<Fp8E4m3> kE4m3;
const Table<Fp8E5m2> kE5m2;

inline F8 load(const Fp8E4m3* p) { return load_bytes(kE4m3.values, &p->bits); }
inline F8 load(const Fp8E5m2* p) { return load_bytes(kE5m2.values, &p->bits); }
inline F8 load(const Int8* p) {
    F8 x = {};
    for (int i = 0; i < kLanes; ++i) x[i] = p[i].value;
    return x;
}

inline void store(float* p, F8 x) { std::memcpy(p, &x, sizeof x); }

// No fused multiply-add here: without the instruction it would be a library call for every product.
inline F8 fma(F8 a, F8 b, F8 c) { return a * b + c; }
inline float fma(float a, float b, float c) { return a * b + c; }

inline F8 to_float(I8 x) { return __builtin_convertvector(x, F8); }

// Adds the four products of unsigned weight bytes and signed activation bytes to each of eight sums.
struct Bytes4 {
    int8_t byte[4];
};
inline Bytes4 splat_bytes(const int8_t* p) { return {{p[0], p[1], p[2], p[3]}}; }
inline I8 dot(I8 sums, const uint8_t* weights, Bytes4 x) {
    for (int i = 0; i < kLanes; ++i) {
        const uint8_t* w = weights + 4 * i;
        sums[i] += w[0] * x.byte[0] + w[1] * x.byte[1] + w[2] * x.byte[2] + w[3] * x.byte[3];
    }
    return sums;
}

inline void exponentials_of(const float* values, int64_t size, double temperature, double largest, double* out) {
    for (int64_t i = 0; i < size; ++i) out[i] = std::exp(values[i] / temperature - largest);
}

#include "wide8.h"

constexpr const char* kIsa = "portable";

#include "kernels_impl.h"

}  // namespace

const Kernels& portable_kernels() { return kKernels; }

}  // namespace pageinn
