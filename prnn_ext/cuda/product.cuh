// The product that the storage type calls for.
#pragma once
#include "number.cuh"
#if PRNN_DTYPE == PRNN_FLOAT32
#include "product_ffma.cuh"
#else
#include "product_mma.cuh"
#endif
