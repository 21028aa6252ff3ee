// Group-norm of large images in bf16: a cluster of blocks per image, whose threads keep what they have read.

#if __CUDA_ARCH__ >= 900
#define CLUSTER(BLOCKS) __cluster_dims__(BLOCKS, 1, 1)

// Another block's copy of what lies here in this one's shared memory.
__device__ __forceinline__ float from_block(const float* here, u32 rank) {
    float value;
    asm volatile("{ .reg .u32 at; mapa.shared::cluster.u32 at, %1, %2; ld.shared::cluster.f32 %0, [at]; }" : "=f"(value) : "r"((u32)__cvta_generic_to_shared(here)), "r"(rank) : "memory");
    return value;
}
#else
#define CLUSTER(BLOCKS)
#endif

// Named by the bytes of an image that the cluster holds. Channels are a power of two from 8 to 128, groups one up to the channels. A thread has eight channels of KEPT pixels.
template <u32 BLOCKS, u32 KEPT>
__device__ __forceinline__ void group_norm_kept(u16* out, float* statistics, const u16* x, const float* gain, const float* shift, u32 pixels,
    u32 channels, u32 groups, float epsilon, int swish) {
#if __CUDA_ARCH__ >= 900
    constexpr u32 WARPS = 8, MOST = 128;
    __shared__ float shares[WARPS][2][MOST], sums[2][MOST], factors[2][MOST];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, units = channels / 8, unit = threadIdx.x % units, step = 32 * WARPS / units;
    u32 per = channels / groups, image = blockIdx.x / BLOCKS, rank = blockIdx.x % BLOCKS, share = (pixels + BLOCKS - 1) / BLOCKS;
    u32 first = rank * share + threadIdx.x / units, last = min((rank + 1) * share, pixels);
    const u16* picture = x + (size_t)image * pixels * channels;
    uint4 kept[KEPT];
#pragma unroll
    for (u32 i = 0; i < KEPT; i++) {
        kept[i] = make_uint4(0, 0, 0, 0);
        if (first + i * step < last) kept[i] = load_words(picture + (size_t)(first + i * step) * channels + unit * 8);
    }
    // Measured from one of the group's own elements, no group is so far from zero that its variance is lost in the squares.
    float origin[8], v[8], a[8] = {}, b[8] = {};
#pragma unroll
    for (u32 i = 0; i < 8; i++) origin[i] = widen(picture[(unit * 8 + i) & ~(per - 1)]);
#pragma unroll
    for (u32 i = 0; i < KEPT; i++) {
        widen_unit(v, kept[i]);
        if (first + i * step < last)
#pragma unroll
            for (u32 c = 0; c < 8; c++) {
                float d = v[c] - origin[c];
                a[c] += d;
                b[c] += d * d;
            }
    }
#pragma unroll
    for (u32 c = 0; c < 8; c++) {
        for (u32 o = units; o < 32; o *= 2) {
            a[c] += __shfl_xor_sync(~0u, a[c], o);
            b[c] += __shfl_xor_sync(~0u, b[c], o);
        }
        if (lane < units) {
            shares[warp][0][unit * 8 + c] = a[c];
            shares[warp][1][unit * 8 + c] = b[c];
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < 2 * groups; i += blockDim.x) {
        u32 which = i / groups, group = i % groups;
        float sum = 0.0f;
        for (u32 c = group * per; c < (group + 1) * per; c++)
#pragma unroll
            for (u32 w = 0; w < WARPS; w++) sum += shares[w][which][c];
        sums[which][group] = sum;
    }
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (threadIdx.x < channels) {
        u32 c = threadIdx.x, group = c / per;
        float sum = 0.0f, square = 0.0f, part = 1.0f / ((float)pixels * per);
#pragma unroll
        for (u32 r = 0; r < BLOCKS; r++) {
            sum += from_block(&sums[0][group], r);
            square += from_block(&sums[1][group], r);
        }
        float offset = sum * part, variance = square * part - offset * offset, mean = widen(picture[c & ~(per - 1)]) + offset;
        float inverse = 1.0f / sqrtf((variance < 0.0f ? 0.0f : variance) + epsilon), scale = inverse * gain[c];
        factors[0][c] = scale;
        factors[1][c] = shift[c] - mean * scale;
        if (rank == 0) {
            statistics[(size_t)image * 2 * channels + c] = mean;
            statistics[((size_t)image * 2 + 1) * channels + c] = inverse;
        }
    }
    __syncthreads();
    // No block leaves before the others have read its sums.
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    float scale[8], offset[8];
#pragma unroll
    for (u32 c = 0; c < 8; c++) {
        scale[c] = factors[0][unit * 8 + c];
        offset[c] = factors[1][unit * 8 + c];
    }
#pragma unroll
    for (u32 i = 0; i < KEPT; i++) {
        widen_unit(v, kept[i]);
#pragma unroll
        for (u32 c = 0; c < 8; c++) v[c] = swished(v[c] * scale[c] + offset[c], swish);
        if (first + i * step < last) *(uint4*)(out + ((size_t)image * pixels + first + i * step) * channels + unit * 8) = narrow_unit(v);
    }
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

#define GROUP_NORM_KEPT(NAME, BLOCKS, KEPT) \
    extern "C" __global__ void CLUSTER(BLOCKS) __launch_bounds__(256, 2) \
    NAME(u16* out, float* statistics, const u16* x, const float* gain, const float* shift, u32 pixels, u32 channels, u32 groups, float epsilon, int swish) { \
        group_norm_kept<BLOCKS, KEPT>(out, statistics, x, gain, shift, pixels, channels, groups, epsilon, swish); \
    }

GROUP_NORM_KEPT(group_norm_128k, 4, 8)
GROUP_NORM_KEPT(group_norm_256k, 8, 8)
GROUP_NORM_KEPT(group_norm_512k, 8, 16)

// The gradient of group_norm_kept in the same way. Also the image's share of the gradients of shift and gain, [B, 2, C], and of dx the sum over each
// block's pixels, column_parts [blocks, C], if it is asked for. Without dx, only the shares.
template <u32 BLOCKS, u32 WARPS>
__device__ __forceinline__ void group_norm_gradient_kept(u16* dx, const u16* x, const u16* dy, const float* statistics, const float* gain,
    const float* shift, float* shares_out, float* column_parts, u32 pixels, u32 channels, u32 groups, int swish, int add) {
#if __CUDA_ARCH__ >= 900
    constexpr u32 MOST = 128, KEPT = 8;
    __shared__ float shares[WARPS][2][MOST], sums[2][MOST], totals[2][MOST], factors[2][MOST];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, units = channels / 8, unit = threadIdx.x % units, step = 32 * WARPS / units;
    u32 per = channels / groups, image = blockIdx.x / BLOCKS, rank = blockIdx.x % BLOCKS, share = (pixels + BLOCKS - 1) / BLOCKS;
    u32 first = rank * share + threadIdx.x / units, last = min((rank + 1) * share, pixels);
    size_t base = ((size_t)image * pixels + first) * channels + unit * 8;
    const float* means = statistics + (size_t)image * 2 * channels;
    uint4 kept[KEPT], given[KEPT];
#pragma unroll
    for (u32 i = 0; i < KEPT; i++) {
        kept[i] = given[i] = make_uint4(0, 0, 0, 0);
        if (first + i * step < last) {
            kept[i] = load_words(x + base + (size_t)i * step * channels);
            given[i] = load_words(dy + base + (size_t)i * step * channels);
        }
    }
    float mean[8], scale[8], offset[8], a[8] = {}, b[8] = {}, v[8], d[8];
#pragma unroll
    for (u32 c = 0; c < 8; c++) {
        u32 channel = unit * 8 + c;
        mean[c] = means[channel];
        scale[c] = means[channels + channel] * gain[channel];
        offset[c] = shift[channel] - mean[c] * scale[c];
    }
    // What does not exist has a gradient of zero.
#pragma unroll
    for (u32 i = 0; i < KEPT; i++) {
        widen_unit(v, kept[i]);
        widen_unit(d, given[i]);
#pragma unroll
        for (u32 c = 0; c < 8; c++) {
            float du = before_swish(d[c], v[c] * scale[c] + offset[c], swish);
            a[c] += du;
            b[c] += du * (v[c] - mean[c]);
        }
    }
#pragma unroll
    for (u32 c = 0; c < 8; c++) {
        for (u32 o = units; o < 32; o *= 2) {
            a[c] += __shfl_xor_sync(~0u, a[c], o);
            b[c] += __shfl_xor_sync(~0u, b[c], o);
        }
        if (lane < units) {
            shares[warp][0][unit * 8 + c] = a[c];
            shares[warp][1][unit * 8 + c] = b[c] * means[channels + unit * 8 + c];
        }
    }
    __syncthreads();
    u32 which = threadIdx.x / channels, own = threadIdx.x % channels;
    if (which < 2) {
        float sum = 0.0f;
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) sum += shares[w][which][own];
        sums[which][own] = sum;
    }
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (which < 2) {
        float total = 0.0f;
#pragma unroll
        for (u32 r = 0; r < BLOCKS; r++) total += from_block(&sums[which][own], r);
        totals[which][own] = total * gain[own];
        if (rank == 0) shares_out[((size_t)image * 2 + which) * channels + own] = total;
    }
    __syncthreads();
    // No block leaves before the others have read its sums.
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    if (dx) {
        if (threadIdx.x < channels) {
            u32 start = own / per * per;
            float s1 = 0.0f, s2 = 0.0f, inverse = means[channels + own], part = 1.0f / ((float)pixels * per);
            for (u32 c = start; c < start + per; c++) {
                s1 += totals[0][c];
                s2 += totals[1][c];
            }
            float slope = -inverse * inverse * s2 * part;
            factors[0][own] = slope;
            factors[1][own] = -inverse * s1 * part - slope * means[own];
        }
        __syncthreads();
        float columns[8] = {};
#pragma unroll
        for (u32 i = 0; i < KEPT; i++) {
            widen_unit(v, kept[i]);
            widen_unit(d, given[i]);
#pragma unroll
            for (u32 c = 0; c < 8; c++) {
                float du = before_swish(d[c], v[c] * scale[c] + offset[c], swish);
                d[c] = du * scale[c] + (v[c] * factors[0][unit * 8 + c] + factors[1][unit * 8 + c]);
            }
            if (first + i * step < last) {
                uint4* to = (uint4*)(dx + base + (size_t)i * step * channels);
                if (add) {
                    widen_unit(v, *to);
#pragma unroll
                    for (u32 c = 0; c < 8; c++) d[c] += v[c];
                }
                *to = narrow_unit(d);
#pragma unroll
                for (u32 c = 0; c < 8; c++) columns[c] += d[c];
            }
        }
        if (column_parts) {
#pragma unroll
            for (u32 c = 0; c < 8; c++) {
                for (u32 o = units; o < 32; o *= 2) columns[c] += __shfl_xor_sync(~0u, columns[c], o);
                if (lane < units) shares[warp][0][unit * 8 + c] = columns[c];
            }
            __syncthreads();
            if (which == 0) {
                float sum = 0.0f;
#pragma unroll
                for (u32 w = 0; w < WARPS; w++) sum += shares[w][0][own];
                column_parts[(size_t)blockIdx.x * channels + own] = sum;
            }
        }
    }
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

#define GROUP_NORM_GRADIENT_KEPT(NAME, BLOCKS, WARPS, AT_ONCE) \
    extern "C" __global__ void CLUSTER(BLOCKS) __launch_bounds__(32 * WARPS, AT_ONCE) \
    NAME(u16* dx, const u16* x, const u16* dy, const float* statistics, const float* gain, const float* shift, float* shares, float* column_parts, u32 pixels, u32 channels, \
        u32 groups, int swish, int add) { \
        group_norm_gradient_kept<BLOCKS, WARPS>(dx, x, dy, statistics, gain, shift, shares, column_parts, pixels, channels, groups, swish, add); \
    }

GROUP_NORM_GRADIENT_KEPT(group_norm_gradient_32k, 1, 8, 2)
GROUP_NORM_GRADIENT_KEPT(group_norm_gradient_128k, 4, 8, 2)
GROUP_NORM_GRADIENT_KEPT(group_norm_gradient_256k, 8, 8, 2)
GROUP_NORM_GRADIENT_KEPT(group_norm_gradient_512k, 8, 16, 1)
