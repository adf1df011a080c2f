// The innermost functions with AVX-512 and its byte products (VNNI), entered only where the processor has them. Like
// avx2.cpp it must define nothing else with external linkage. Its results have the bits of avx2.cpp's.
#include "kernels.h"

#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <type_traits>

namespace pageinn {
namespace {

#include "avx_vectors.h"
#include "wide16.h"

constexpr const char* kIsa = "avx512";

#include "kernels_impl.h"
#include "kernels_vnni.h"

}  // namespace

const Kernels& avx512_kernels() {
    static const Kernels kernels = with_byte_products(kKernels);
    return kernels;
}

}  // namespace pageinn
