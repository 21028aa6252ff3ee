// Group-norm of images [B, H, W, C], optionally followed by swish.
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

// Joins the sums of all blocks of the image, then normalises this block's share. Shared: five floats per channel. The first block of an image writes
// its statistics [B, 2, C] for the gradient.
extern "C" __global__ void __launch_bounds__(256, 6) group_norm(View out, float* statistics, View x, const float* parts, const float* gain,
    const float* shift, u32 pixels, u32 channels, u32 splits, u32 groups, float epsilon, int swish) {
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
extern "C" __global__ void __launch_bounds__(1024) group_norm_whole(View out, float* statistics, View x, const float* gain, const float* shift,
    u32 pixels, u32 channels, u32 groups, float epsilon, int swish) {
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

// Sums of the gradient before swish and of its product with xhat.
extern "C" __global__ void __launch_bounds__(256, 5) group_norm_gradient_sums(View x, View dy, const float* statistics, const float* gain,
    const float* shift, float* parts, u32 pixels, u32 channels, u32 splits, int swish) {
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
extern "C" __global__ void group_norm_factors(const float* parts, const float* statistics, const float* gain, float* factors, float* shares,
    u32 pixels, u32 channels, u32 splits, u32 groups, u32 n) {
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

extern "C" __global__ void __launch_bounds__(256, 5) group_norm_gradient(View dx, View x, View dy, const float* statistics, const float* gain,
    const float* shift, const float* factors, u32 pixels, u32 channels, u32 splits, int swish, int add) {
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
