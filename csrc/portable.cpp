// The innermost functions in portable C++ (with the vector types that GCC and Clang give every target).
#include "kernels.h"

#include <cmath>
#include <cstring>

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

inline F8 load(const uint16_t* p) {
    I8 bits = {};
    for (int i = 0; i < kLanes; ++i) bits[i] = static_cast<int32_t>(static_cast<uint32_t>(p[i]) << 16);
    return (F8)bits;
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

constexpr const char* kIsa = "portable";

#include "kernels_impl.h"

}  // namespace

const Kernels& portable_kernels() { return kKernels; }

}  // namespace pageinn
