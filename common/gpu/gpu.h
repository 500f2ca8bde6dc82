// Everything a kernel may call.
#pragma once

#include "common/gpu/async_copy.h"
#include "common/gpu/atomic.h"
#include "common/gpu/barrier.h"
#include "common/gpu/bulk_copy.h"
#include "common/gpu/cluster.h"
#include "common/gpu/ldmatrix.h"
#include "common/gpu/machine.h"
#include "common/gpu/math.h"
#include "common/gpu/mbarrier.h"
#include "common/gpu/memory.h"
#include "common/gpu/mma.h"
#include "common/gpu/proxy_fence.h"
#include "common/gpu/tensor_map.h"
#include "common/gpu/types.h"
#include "common/gpu/warp.h"
