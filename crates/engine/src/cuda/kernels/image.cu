// Images [B, H, W, C].

// The maximum of every 2x2 block, the first of equals; n results.
extern "C" __global__ void max_pool(View out, u8* taken, View x, u32 half_width, u32 channels, u32 n) {
    if (channels % 4 == 0) {
        EACH(j, n / 4) {
            u32 i = 4 * j, c = i % channels, ox = i / channels % half_width, row = i / channels / half_width;
            size_t line = 2 * half_width * channels, corner = row * 2 * line + 2 * ox * channels + c;
            float4 best = get4(x, corner);
            uchar4 index = make_uchar4(0, 0, 0, 0);
            size_t at[3] = {corner + channels, corner + line, corner + line + channels};
#pragma unroll
            for (int k = 0; k < 3; k++) {
                float4 v = get4(x, at[k]);
                if (v.x > best.x || v.x != v.x) { best.x = v.x; index.x = k + 1; }
                if (v.y > best.y || v.y != v.y) { best.y = v.y; index.y = k + 1; }
                if (v.z > best.z || v.z != v.z) { best.z = v.z; index.z = k + 1; }
                if (v.w > best.w || v.w != v.w) { best.w = v.w; index.w = k + 1; }
            }
            put4(out, i, best);
            *(uchar4*)(taken + i) = index;
        }
        return;
    }
    EACH(i, n) {
        size_t c = i % channels, ox = i / channels % half_width, row = i / channels / half_width;
        size_t line = (size_t)2 * half_width * channels, corner = row * 2 * line + 2 * ox * channels + c;
        float best = get(x, corner);
        u8 index = 0;
        size_t at[3] = {corner + channels, corner + line, corner + line + channels};
        for (int k = 0; k < 3; k++) {
            float v = get(x, at[k]);
            if (v > best || v != v) {
                best = v;
                index = k + 1;
            }
        }
        put(out, i, best);
        taken[i] = index;
    }
}

// n inputs' gradients
extern "C" __global__ void max_pool_gradient(View dx, View dy, const u8* taken, u32 width, u32 channels, u32 n, int add) {
    if (channels % 4 == 0) {
        EACH(j, n / 4) {
            u32 i = 4 * j, c = i % channels, x = i / channels % width, y = i / channels / width;
            u32 from = ((y / 2) * (width / 2) + x / 2) * channels + c, index = (y % 2) * 2 + x % 2;
            uchar4 t = *(const uchar4*)(taken + from);
            float4 d = get4(dy, from);
            put4_or_add(dx, i, make_float4(t.x == index ? d.x : 0.0f, t.y == index ? d.y : 0.0f, t.z == index ? d.z : 0.0f, t.w == index ? d.w : 0.0f), add);
        }
        return;
    }
    EACH(i, n) {
        size_t c = i % channels, x = i / channels % width, y = i / channels / width;
        size_t from = ((y / 2) * (width / 2) + x / 2) * channels + c;
        put_or_add(dx, i, taken[from] == (y % 2) * 2 + x % 2 ? get(dy, from) : 0.0f, add);
    }
}

// Every pixel four times; n results, `width` of the result.
extern "C" __global__ void upsample(View out, View x, u32 width, u32 channels, u32 n) {
    if (channels % 4 == 0) EACH(j, n / 4) {
        size_t i = 4 * j, c = i % channels, ox = i / channels % width, oy = i / channels / width;
        put4(out, i, get4(x, ((oy / 2) * (width / 2) + ox / 2) * channels + c));
    }
    else EACH(i, n) {
        size_t c = i % channels, ox = i / channels % width, oy = i / channels / width;
        put(out, i, get(x, ((oy / 2) * (width / 2) + ox / 2) * channels + c));
    }
}

// n inputs' gradients, `width` of the input.
extern "C" __global__ void upsample_gradient(View dx, View dy, u32 width, u32 channels, u32 n, int add) {
    if (channels % 4 == 0) EACH(j, n / 4) {
        size_t i = 4 * j, c = i % channels, x = i / channels % width, y = i / channels / width;
        size_t line = (size_t)2 * width * channels, corner = y * 2 * line + 2 * x * channels + c;
        float4 a = get4(dy, corner), b = get4(dy, corner + channels), d = get4(dy, corner + line), e = get4(dy, corner + line + channels);
        put4_or_add(dx, i, make_float4((a.x + b.x) + (d.x + e.x), (a.y + b.y) + (d.y + e.y), (a.z + b.z) + (d.z + e.z), (a.w + b.w) + (d.w + e.w)), add);
    }
    else EACH(i, n) {
        size_t c = i % channels, x = i / channels % width, y = i / channels / width;
        size_t line = (size_t)2 * width * channels, corner = y * 2 * line + 2 * x * channels + c;
        float sum = (get(dy, corner) + get(dy, corner + channels)) + (get(dy, corner + line) + get(dy, corner + line + channels));
        put_or_add(dx, i, sum, add);
    }
}

// ---- group-norm ----
//
// Sums over pixels are made per channel by `splits` blocks per image (parts [B, splits, 2, C]) and joined per group afterwards.
// Where channels come in fours, and are not too many, a block has a multiple of `channels / 4` threads and each keeps to its four channels. As many blocks
// of 256 threads fit on a processor as the bounds say; the launches count on it.

__device__ __forceinline__ bool in_fours(u32 channels) { return channels % 4 == 0 && channels <= 4 * blockDim.x; }

template <typename F> __device__ void channel_sums(u32 pixels, u32 channels, u32 splits, float* parts, F two) {
    extern __shared__ __align__(16) float room[]; // [2][threads][4]
    u32 image = blockIdx.x / splits, split = blockIdx.x % splits;
    u32 first = (u32)((u64)pixels * split / splits), last = (u32)((u64)pixels * (split + 1) / splits);
    float* out = parts + (size_t)blockIdx.x * 2 * channels;
    size_t base = (size_t)image * pixels * channels;
    if (in_fours(channels)) {
        u32 quads = channels / 4, lanes = blockDim.x / quads, q = threadIdx.x % quads, lane = threadIdx.x / quads;
        float4 a = make_float4(0, 0, 0, 0), b = a;
        if (lane < lanes)
            for (u32 pixel = first + lane; pixel < last; pixel += lanes) two(base, (size_t)base + (size_t)pixel * channels + 4 * q, 4 * q, a, b);
        float4* sums = (float4*)room;
        sums[threadIdx.x] = a;
        sums[blockDim.x + threadIdx.x] = b;
        __syncthreads();
        for (u32 i = threadIdx.x; i < 2 * quads; i += blockDim.x) {
            u32 which = i / quads, quad = i % quads;
            float4 total = make_float4(0, 0, 0, 0);
            for (u32 l = 0; l < lanes; l++) {
                float4 v = sums[which * blockDim.x + l * quads + quad];
                total.x += v.x; total.y += v.y; total.z += v.z; total.w += v.w;
            }
            *(float4*)(out + which * channels + 4 * quad) = total;
        }
    } else {
        for (u32 c = threadIdx.x; c < channels; c += blockDim.x) {
            float4 a = make_float4(0, 0, 0, 0), b = a;
            for (u32 pixel = first; pixel < last; pixel++) two(base, (size_t)base + (size_t)pixel * channels + c, c, a, b);
            out[c] = a.x;
            out[channels + c] = b.x;
        }
    }
}

// Sums of x - origin and of its square; the origin is the image's first pixel, which keeps squares small when the mean is large.
extern "C" __global__ void __launch_bounds__(256, 6) group_norm_sums(View x, float* parts, u32 pixels, u32 channels, u32 splits) {
    bool wide = in_fours(channels);
    channel_sums(pixels, channels, splits, parts, [&](size_t base, size_t at, u32 c, float4& a, float4& b) {
        if (wide) {
            float4 v = get4(x, at), o = get4(x, base + c);
            FOUR({ float d = part<e>(v) - part<e>(o); part<e>(a) += d; part<e>(b) += d * d; })
        } else {
            float d = get(x, at) - get(x, base + c);
            a.x += d;
            b.x += d * d;
        }
    });
}

// Mean and 1 / deviation of a group from its channels' sums of x - origin and its square, in shared memory: totals [5][C] holds sum, squares, mean,
// inverse and origin.
__device__ void group_statistics(float* totals, u32 pixels, u32 channels, u32 groups, float epsilon) {
    u32 per = channels / groups;
    const float *sums = totals, *squares = totals + channels, *origin = totals + 4 * channels;
    double share = 1.0 / ((double)pixels * per);
    for (u32 group = threadIdx.x; group < groups; group += blockDim.x) {
        double total = 0.0, deviation = 0.0;
        for (u32 c = group * per; c < (group + 1) * per; c++) total += (double)sums[c] + pixels * (double)origin[c];
        double mean = total * share;
        for (u32 c = group * per; c < (group + 1) * per; c++) {
            double d = (double)origin[c] - mean;
            deviation += squares[c] + 2.0 * d * sums[c] + pixels * d * d;
        }
        float variance = (float)(deviation * share);
        float inverse = 1.0f / sqrtf((variance < 0.0f ? 0.0f : variance) + epsilon);
        for (u32 c = group * per; c < (group + 1) * per; c++) {
            totals[2 * channels + c] = (float)mean;
            totals[3 * channels + c] = inverse;
        }
    }
    __syncthreads();
}

// Walks the pixels of a block's share of an image. Where channels come in fours a thread keeps to its four, and `make` prepares what it
// needs for them once; `work` gets it with the place of the elements.
template <typename M, typename W4, typename W1>
__device__ void each_pixel(u32 pixels, u32 channels, u32 splits, M make, W4 four, W1 one) {
    u32 image = blockIdx.x / splits, split = blockIdx.x % splits;
    u32 first = (u32)((u64)pixels * split / splits), last = (u32)((u64)pixels * (split + 1) / splits);
    size_t base = (size_t)image * pixels * channels;
    if (in_fours(channels)) {
        u32 quads = channels / 4, lanes = blockDim.x / quads, c = 4 * (threadIdx.x % quads), lane = threadIdx.x / quads;
        if (lane >= lanes) return;
        auto prepared = make(image, c);
#pragma unroll 4
        for (u32 pixel = first + lane; pixel < last; pixel += lanes) four(prepared, base + (size_t)pixel * channels + c);
    } else {
        for (u32 c = threadIdx.x; c < channels; c += blockDim.x)
            for (u32 pixel = first; pixel < last; pixel++) one(image, c, base + (size_t)pixel * channels + c);
    }
}

struct Two { float4 a, b; };
struct Four { float4 a, b, c, d; };

// u = x * scale + offset for four channels
__device__ __forceinline__ Two scale_and_offset(const float* statistics, const float* gain, const float* shift, u32 image, u32 channels, u32 c) {
    float4 m = *(const float4*)(statistics + (size_t)image * 2 * channels + c), r = *(const float4*)(statistics + (size_t)image * 2 * channels + channels + c);
    float4 g = *(const float4*)(gain + c), h = *(const float4*)(shift + c);
    Two t;
    FOUR({ part<e>(t.a) = part<e>(r) * part<e>(g); part<e>(t.b) = part<e>(h) - part<e>(m) * part<e>(t.a); })
    return t;
}

__device__ __forceinline__ float before_swish(float dy, float u, int swish) {
    if (!swish) return dy;
    float p = sigmoid(u);
    return dy * p * (1.0f + u * (1.0f - p));
}

// Joins the sums of all blocks of the image, then normalises this block's share. Shared: five floats per channel. The first block of an image writes
// its statistics [B, 2, C] for the gradient.
extern "C" __global__ void __launch_bounds__(256, 6) group_norm(View out, float* statistics, View x, const float* parts, const float* gain, const float* shift, u32 pixels, u32 channels, u32 splits, u32 groups, float epsilon, int swish) {
    extern __shared__ __align__(16) float totals[];
    u32 image = blockIdx.x / splits;
    for (u32 i = threadIdx.x; i < 2 * channels; i += blockDim.x) {
        const float* from = parts + (size_t)image * splits * 2 * channels + i;
        double sum = 0.0;
#pragma unroll 8
        for (u32 s = 0; s < splits; s++) sum += from[s * 2 * channels];
        totals[i] = (float)sum;
        if (i < channels) totals[4 * channels + i] = get(x, (size_t)image * pixels * channels + i);
    }
    __syncthreads();
    group_statistics(totals, pixels, channels, groups, epsilon);
    const float* means = totals + 2 * channels;
    if (blockIdx.x % splits == 0)
        for (u32 i = threadIdx.x; i < 2 * channels; i += blockDim.x) statistics[(size_t)image * 2 * channels + i] = means[i];
    each_pixel(pixels, channels, splits,
        [&](u32 image, u32 c) { return scale_and_offset(means, gain, shift, 0, channels, c); },
        [&](const Two& t, size_t at) {
            float4 v = get4(x, at), s = t.a, o = t.b;
            FOUR({ part<e>(v) = swished(part<e>(v) * part<e>(s) + part<e>(o), swish); })
            put4(out, at, v);
        },
        [&](u32 image, u32 c, size_t at) {
            float scale = means[channels + c] * gain[c];
            put(out, at, swished(get(x, at) * scale + (shift[c] - means[c] * scale), swish));
        });
}

// All of it for small images: one block each, whose threads are a multiple of `channels / 4` and, where that divides a warp, whole warps. A thread
// keeps what it has read of its first pixels. Shared: the sums of every warp, or of every pixel that is read at a time; five floats per channel.
extern "C" __global__ void __launch_bounds__(1024) group_norm_whole(View out, float* statistics, View x, const float* gain, const float* shift, u32 pixels, u32 channels, u32 groups, float epsilon, int swish) {
    extern __shared__ __align__(16) float shares[]; // [2][rows][C], then [5][C]
    constexpr u32 KEPT = 4;
    u32 quads = channels / 4, lanes = blockDim.x / quads, lane = threadIdx.x / quads, c = 4 * (threadIdx.x % quads);
    bool folds = 32 % quads == 0;
    u32 rows = folds ? blockDim.x / 32 : lanes, row = folds ? threadIdx.x / 32 : lane;
    float* totals = shares + 2 * rows * channels;
    size_t base = (size_t)blockIdx.x * pixels * channels + c;
    float4 kept[KEPT], a = make_float4(0, 0, 0, 0), b = a, o = get4(x, base);
#pragma unroll
    for (u32 i = 0; i < KEPT; i++) kept[i] = lane + i * lanes < pixels ? get4(x, base + (size_t)(lane + i * lanes) * channels) : o;
    auto add = [&](float4 v) { FOUR({ float d = part<e>(v) - part<e>(o); part<e>(a) += d; part<e>(b) += d * d; }) };
#pragma unroll
    for (u32 i = 0; i < KEPT; i++) add(kept[i]);
    for (u32 pixel = lane + KEPT * lanes; pixel < pixels; pixel += lanes) add(get4(x, base + (size_t)pixel * channels));
    if (folds)
        for (u32 step = quads; step < 32; step *= 2) {
            FOUR({ part<e>(a) += __shfl_xor_sync(~0u, part<e>(a), step); part<e>(b) += __shfl_xor_sync(~0u, part<e>(b), step); })
        }
    if (!folds || (threadIdx.x & 31) < quads) {
        *(float4*)(shares + row * channels + c) = a;
        *(float4*)(shares + (rows + row) * channels + c) = b;
    }
    if (lane == 0) *(float4*)(totals + 4 * channels + c) = o;
    __syncthreads();
    for (u32 i = threadIdx.x; i < 2 * channels; i += blockDim.x) {
        const float* from = shares + i / channels * rows * channels + i % channels;
        float sum = 0.0f;
#pragma unroll 8
        for (u32 r = 0; r < rows; r++) sum += from[r * channels];
        totals[i] = sum;
    }
    __syncthreads();
    group_statistics(totals, pixels, channels, groups, epsilon);
    for (u32 i = threadIdx.x; i < 2 * channels; i += blockDim.x) statistics[(size_t)blockIdx.x * 2 * channels + i] = totals[2 * channels + i];
    float4 m = *(float4*)(totals + 2 * channels + c), r = *(float4*)(totals + 3 * channels + c);
    float4 g = *(const float4*)(gain + c), h = *(const float4*)(shift + c);
    FOUR({ part<e>(g) *= part<e>(r); part<e>(h) -= part<e>(m) * part<e>(g); })
    auto write = [&](u32 pixel, float4 v) {
        FOUR({ part<e>(v) = swished(part<e>(v) * part<e>(g) + part<e>(h), swish); })
        put4(out, base + (size_t)pixel * channels, v);
    };
#pragma unroll
    for (u32 i = 0; i < KEPT; i++)
        if (lane + i * lanes < pixels) write(lane + i * lanes, kept[i]);
    for (u32 pixel = lane + KEPT * lanes; pixel < pixels; pixel += lanes) write(pixel, get4(x, base + (size_t)pixel * channels));
}

// ---- group-norm of large images in bf16: a cluster of blocks per image, whose threads keep what they have read ----

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
__device__ __forceinline__ void group_norm_kept(u16* out, float* statistics, const u16* x, const float* gain, const float* shift, u32 pixels, u32 channels, u32 groups, float epsilon, int swish) {
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

// Sums of the gradient before swish and of its product with xhat.
extern "C" __global__ void __launch_bounds__(256, 5) group_norm_gradient_sums(View x, View dy, const float* statistics, const float* gain, const float* shift, float* parts, u32 pixels, u32 channels, u32 splits, int swish) {
    bool wide = in_fours(channels);
    u32 image = blockIdx.x / splits, mine = wide ? 4 * (threadIdx.x % (channels / 4)) : 0;
    const float* s = statistics + (size_t)image * 2 * channels;
    float4 m = make_float4(0, 0, 0, 0), r = m;
    Two t = {m, m};
    if (wide) {
        m = *(const float4*)(s + mine);
        r = *(const float4*)(s + channels + mine);
        t = scale_and_offset(statistics, gain, shift, image, channels, mine);
    }
    channel_sums(pixels, channels, splits, parts, [&](size_t base, size_t at, u32 c, float4& a, float4& b) {
        if (wide) {
            float4 v = get4(x, at), d = get4(dy, at);
            FOUR({
                float du = before_swish(part<e>(d), part<e>(v) * part<e>(t.a) + part<e>(t.b), swish);
                part<e>(a) += du;
                part<e>(b) += du * (part<e>(v) - part<e>(m)) * part<e>(r);
            })
        } else {
            float xhat = (get(x, at) - s[c]) * s[channels + c];
            float du = before_swish(get(dy, at), xhat * gain[c] + shift[c], swish);
            a.x += du;
            b.x += du * xhat;
        }
    });
}

// Per image and channel: dx = du * f0 + x * f1 + f2, factors [B, 3, C]; and the image's share of the gradients of shift and gain, shares [B, 2, C].
extern "C" __global__ void group_norm_factors(const float* parts, const float* statistics, const float* gain, float* factors, float* shares, u32 pixels, u32 channels, u32 splits, u32 groups, u32 n) {
    EACH(i, n) {
        size_t image = i / groups, group = i % groups;
        u32 per = channels / groups;
        float count = (float)pixels * per, s1 = 0.0f, s2 = 0.0f;
        for (u32 c = group * per; c < (group + 1) * per; c++) {
            float du = 0.0f, du_xhat = 0.0f;
            for (u32 s = 0; s < splits; s++) {
                du += parts[((image * splits + s) * 2) * channels + c];
                du_xhat += parts[((image * splits + s) * 2 + 1) * channels + c];
            }
            shares[image * 2 * channels + c] = du;
            shares[image * 2 * channels + channels + c] = du_xhat;
            s1 += du * gain[c];
            s2 += du_xhat * gain[c];
        }
        for (u32 c = group * per; c < (group + 1) * per; c++) {
            float mean = statistics[image * 2 * channels + c], inverse = statistics[image * 2 * channels + channels + c];
            float f1 = -inverse * inverse * s2 / count;
            factors[image * 3 * channels + c] = inverse * gain[c];
            factors[image * 3 * channels + channels + c] = f1;
            factors[image * 3 * channels + 2 * channels + c] = -inverse * s1 / count - f1 * mean;
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, 5) group_norm_gradient(View dx, View x, View dy, const float* statistics, const float* gain, const float* shift, const float* factors, u32 pixels, u32 channels, u32 splits, int swish, int add) {
    each_pixel(pixels, channels, splits,
        [&](u32 image, u32 c) {
            Two t = scale_and_offset(statistics, gain, shift, image, channels, c);
            const float* f = factors + (size_t)image * 3 * channels + c;
            Four all = {t.a, t.b, *(const float4*)(f + channels), *(const float4*)(f + 2 * channels)};
            return all;
        },
        [&](const Four& f, size_t at) {
            float4 v = get4(x, at), d = get4(dy, at), s = f.a, o = f.b, f1 = f.c, f2 = f.d, g;
            FOUR({
                float du = before_swish(part<e>(d), part<e>(v) * part<e>(s) + part<e>(o), swish);
                part<e>(g) = du * part<e>(s) + (part<e>(v) * part<e>(f1) + part<e>(f2));
            })
            put4_or_add(dx, at, g, add);
        },
        [&](u32 image, u32 c, size_t at) {
            const float* s = statistics + (size_t)image * 2 * channels;
            const float* f = factors + (size_t)image * 3 * channels;
            float v = get(x, at), du = before_swish(get(dy, at), (v - s[c]) * s[channels + c] * gain[c] + shift[c], swish);
            put_or_add(dx, at, du * f[c] + (v * f[channels + c] + f[2 * channels + c]), add);
        });
}

// The gradient of group_norm_kept in the same way. Also the image's share of the gradients of shift and gain, [B, 2, C]. Without dx, only that.
template <u32 BLOCKS, u32 WARPS>
__device__ __forceinline__ void group_norm_gradient_kept(u16* dx, const u16* x, const u16* dy, const float* statistics, const float* gain, const float* shift, float* shares_out, u32 pixels, u32 channels, u32 groups, int swish, int add) {
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
            }
        }
    }
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

#define GROUP_NORM_GRADIENT_KEPT(NAME, BLOCKS, WARPS, AT_ONCE) \
    extern "C" __global__ void CLUSTER(BLOCKS) __launch_bounds__(32 * WARPS, AT_ONCE) \
    NAME(u16* dx, const u16* x, const u16* dy, const float* statistics, const float* gain, const float* shift, float* shares, u32 pixels, u32 channels, u32 groups, int swish, int add) { \
        group_norm_gradient_kept<BLOCKS, WARPS>(dx, x, dy, statistics, gain, shift, shares, pixels, channels, groups, swish, add); \
    }

GROUP_NORM_GRADIENT_KEPT(group_norm_gradient_32k, 1, 8, 2)
GROUP_NORM_GRADIENT_KEPT(group_norm_gradient_128k, 4, 8, 2)
GROUP_NORM_GRADIENT_KEPT(group_norm_gradient_256k, 8, 8, 2)
GROUP_NORM_GRADIENT_KEPT(group_norm_gradient_512k, 8, 16, 1)

// ---- perceptual distance: a group of lanes per pixel, four channels each where they come in fours ----

#define TINY 1e-10f

// Lanes that share a pixel: 32, or fewer when there are fewer channels.
__device__ __forceinline__ u32 lanes_of(u32 channels) {
    u32 wanted = channels % 4 == 0 ? channels / 4 : channels, lanes = 32;
    while (lanes / 2 >= wanted && lanes > 1) lanes /= 2;
    return lanes;
}

__device__ __forceinline__ float sum_over(float x, u32 lanes) {
    for (u32 o = lanes / 2; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
    return x;
}

// Calls f(place, channel, x, y, weight) for the four channels at c.
template <typename F>
__device__ __forceinline__ void each_channel(View a, View b, const float* weights, size_t at, u32 channels, u32 lane, u32 lanes, bool real, Draw draw, float rate, F f) {
    float keep = 1.0f / (1.0f - rate);
    if (!real) return;
    if (channels % 4 == 0) {
        for (u32 c = 4 * lane; c < channels; c += 4 * lanes) {
            float4 x = get4(a, at + c), y = get4(b, at + c), w = *(const float4*)(weights + c);
            if (rate > 0.0f) {
                uint4 bits = philox(draw, (u32)((at + c) / 4));
                w.x *= unit(bits.x) >= rate ? keep : 0.0f;
                w.y *= unit(bits.y) >= rate ? keep : 0.0f;
                w.z *= unit(bits.z) >= rate ? keep : 0.0f;
                w.w *= unit(bits.w) >= rate ? keep : 0.0f;
            }
            FOUR({ f(at + c + e, part<e>(x), part<e>(y), part<e>(w)); })
        }
    } else {
        for (u32 c = lane; c < channels; c += lanes) {
            float w = weights[c];
            if (rate > 0.0f) w *= unit(random_bits(draw, (u32)(at + c))) >= rate ? keep : 0.0f;
            f(at + c, get(a, at + c), get(b, at + c), w);
        }
    }
}

// One sum per block: parts [blocks].
extern "C" __global__ void perceptual(View a, View b, const float* weights, double* parts, u32 pixels, u32 channels, float rate, const u32* state, u32 site) {
    Draw draw = draw_of(state, site);
    u32 lanes = lanes_of(channels), lane = threadIdx.x % lanes, each = blockDim.x / lanes, step = gridDim.x * each;
    float total = 0.0f;
    for (u32 start = blockIdx.x * each; start < pixels; start += step) {
        u32 pixel = start + threadIdx.x / lanes;
        bool real = pixel < pixels;
        size_t at = (size_t)pixel * channels;
        float aa = 0.0f, bb = 0.0f;
        each_channel(a, b, weights, at, channels, lane, lanes, real, draw, 0.0f, [&](size_t i, float x, float y, float w) { aa += x * x; bb += y * y; });
        float ia = 1.0f / (sqrtf(sum_over(aa, lanes)) + TINY), ib = 1.0f / (sqrtf(sum_over(bb, lanes)) + TINY);
        each_channel(a, b, weights, at, channels, lane, lanes, real, draw, rate, [&](size_t i, float x, float y, float w) {
            float d = x * ia - y * ib;
            total += w * d * d;
        });
    }
    double sum = block_sum((double)total);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// dx (+)= gradient of the mean distance of x to y
extern "C" __global__ void perceptual_gradient(View dx, View x, View y, const float* weights, const float* dy, u32 pixels, u32 channels, float rate, const u32* state, u32 site, int add) {
    Draw draw = draw_of(state, site);
    float factor = dy[0] / (float)pixels;
    u32 lanes = lanes_of(channels), lane = threadIdx.x % lanes, each = blockDim.x / lanes, step = gridDim.x * each;
    for (u32 start = blockIdx.x * each; start < pixels; start += step) {
        u32 pixel = start + threadIdx.x / lanes;
        bool real = pixel < pixels;
        size_t at = (size_t)pixel * channels;
        float xx = 0.0f, yy = 0.0f, inner = 0.0f;
        each_channel(x, y, weights, at, channels, lane, lanes, real, draw, 0.0f, [&](size_t i, float p, float q, float w) { xx += p * p; yy += q * q; });
        float length = sqrtf(sum_over(xx, lanes)), ix = 1.0f / (length + TINY), iy = 1.0f / (sqrtf(sum_over(yy, lanes)) + TINY);
        each_channel(x, y, weights, at, channels, lane, lanes, real, draw, rate, [&](size_t i, float p, float q, float w) {
            inner += 2.0f * factor * w * (p * ix - q * iy) * p;
        });
        inner = sum_over(inner, lanes) * ix * ix;
        float along = length > 0.0f ? inner / length : 0.0f;
        each_channel(x, y, weights, at, channels, lane, lanes, real, draw, rate, [&](size_t i, float p, float q, float w) {
            put_or_add(dx, i, 2.0f * factor * w * (p * ix - q * iy) * ix - along * p, add);
        });
    }
}

// One more row and column of zeros at the bottom and the right; n results.
extern "C" __global__ void pad(View out, View x, u32 height, u32 width, u32 channels, u32 n) {
    if (channels % 4 == 0) EACH(j, n / 4) {
        size_t i = 4 * j, c = i % channels, ox = i / channels % (width + 1), oy = i / channels / (width + 1) % (height + 1);
        size_t b = i / channels / (width + 1) / (height + 1);
        bool inside = ox < width && oy < height;
        put4(out, i, inside ? get4(x, ((b * height + oy) * width + ox) * channels + c) : make_float4(0, 0, 0, 0));
    }
    else EACH(i, n) {
        size_t c = i % channels, ox = i / channels % (width + 1), oy = i / channels / (width + 1) % (height + 1);
        size_t b = i / channels / (width + 1) / (height + 1);
        bool inside = ox < width && oy < height;
        put(out, i, inside ? get(x, ((b * height + oy) * width + ox) * channels + c) : 0.0f);
    }
}

// out (+)= the upper left part of larger images; n results.
extern "C" __global__ void crop(View out, View x, u32 height, u32 width, u32 channels, u32 x_width, u32 x_height, u32 n, int add) {
    EACH(i, n) {
        size_t c = i % channels, ox = i / channels % width, oy = i / channels / width % height, b = i / channels / width / height;
        put_or_add(out, i, get(x, ((b * x_height + oy) * x_width + ox) * channels + c), add);
    }
}

// Pixels of few channels with zeros up to eight: 16 bytes each in bf16.
extern "C" __global__ void widen_pixels(u16* out, View x, u32 channels, u32 pixels) {
    EACH(i, pixels) {
        u32 words[4] = {0, 0, 0, 0};
        for (u32 c = 0; c < channels; c++) words[c / 2] |= (u32)narrow(get(x, (size_t)i * channels + c)) << (16 * (c % 2));
        *(uint4*)(out + 8 * (size_t)i) = make_uint4(words[0], words[1], words[2], words[3]);
    }
}
