// The innermost functions with AVX2, FMA and F16C. Only this file is compiled for them, and it is entered only where
// the processor has them. It must therefore define nothing with external linkage but avx2_kernels(): an inline function
// that both this file and a portable one emit would be merged by the linker, and crash an older processor.
#include "kernels.h"

#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <type_traits>

namespace pageinn {
namespace {

#include "avx_vectors.h"
#include "wide8.h"

constexpr const char* kIsa = "avx2";

#include "kernels_impl.h"

}  // namespace

const Kernels& avx2_kernels() { return kKernels; }

}  // namespace pageinn
