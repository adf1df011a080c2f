// The kernels of an instruction set by its name.
#pragma once

#include <string>

#include "kernels.h"

namespace pageinn {

// name: of an instruction set, or "auto" for the best that the processor has. Throws std::invalid_argument.
const Kernels& kernels_for(const std::string& name);

}  // namespace pageinn
