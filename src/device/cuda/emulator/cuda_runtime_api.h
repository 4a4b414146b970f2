/* cuda_runtime_api.h (private): the toolkit's name for the host's part of cuda_runtime.h. */
#include "cuda_runtime.h"
