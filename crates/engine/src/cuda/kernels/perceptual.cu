// Perceptual distance: a group of lanes per pixel. In bf16 each keeps eight channels or twice eight; otherwise it has four at a time where they come
// in fours.

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

// Whether lanes can keep their channels, once or twice eight, in registers.
__device__ __forceinline__ bool are_kept(View a, View b, u32 channels) { return a.bf16 && b.bf16 && channels % 8 == 0 && channels <= 512; }

__device__ __forceinline__ bool are_kept_twice(u32 channels) { return channels > 256; }

// A group of lanes for every pixel, N times eight channels each. Calls f(first, lanes, there, x, y, w) for all lanes of a
// warp at once, with the place of a lane's first eight; those that are not there are zero.
template <u32 N, typename F>
__device__ __forceinline__ void each_kept_pixel(View a, View b, const float* weights, u32 pixels, u32 channels, Draw draw, float rate, F f) {
    u32 units = channels / 8, lanes = 32;
    while (lanes / 2 >= units && lanes > 1) lanes /= 2;
    u32 lane = threadIdx.x % lanes, each = blockDim.x / lanes;
    float keep = 1.0f / (1.0f - rate);
    for (u32 start = blockIdx.x * each; start < pixels; start += gridDim.x * each) {
        u32 pixel = start + threadIdx.x / lanes, first = pixel * units + lane;
        bool there[N];
        float x[N][8], y[N][8], w[N][8];
#pragma unroll
        for (u32 k = 0; k < N; k++) {
            there[k] = lane + k * lanes < units && pixel < pixels;
            uint4 nothing = make_uint4(0, 0, 0, 0);
            widen_unit(x[k], there[k] ? *((const uint4*)a.p + first + k * lanes) : nothing);
            widen_unit(y[k], there[k] ? *((const uint4*)b.p + first + k * lanes) : nothing);
        }
#pragma unroll
        for (u32 k = 0; k < N; k++) {
#pragma unroll
            for (u32 c = 0; c < 8; c += 4) {
                float4 four = there[k] ? *(const float4*)(weights + 8 * (lane + k * lanes) + c) : make_float4(0, 0, 0, 0);
                FOUR({ w[k][c + e] = part<e>(four); })
            }
            if (rate > 0.0f) {
                uint4 low = philox(draw, 2 * (first + k * lanes)), high = philox(draw, 2 * (first + k * lanes) + 1);
                u32 bits[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
                for (u32 c = 0; c < 8; c++) w[k][c] *= unit(bits[c]) >= rate ? keep : 0.0f;
            }
        }
        f(first, lanes, there, x, y, w);
    }
}

template <u32 N>
__device__ __forceinline__ float kept_distances(View a, View b, const float* weights, u32 pixels, u32 channels, Draw draw, float rate) {
    float total = 0.0f;
    each_kept_pixel<N>(a, b, weights, pixels, channels, draw, rate, [&](u32 first, u32 lanes, bool (&there)[N], float (&x)[N][8], float (&y)[N][8], float (&w)[N][8]) {
        float aa = 0.0f, bb = 0.0f;
#pragma unroll
        for (u32 k = 0; k < N; k++)
#pragma unroll
            for (u32 c = 0; c < 8; c++) {
                aa += x[k][c] * x[k][c];
                bb += y[k][c] * y[k][c];
            }
        float ia = 1.0f / (sqrtf(sum_over(aa, lanes)) + TINY), ib = 1.0f / (sqrtf(sum_over(bb, lanes)) + TINY);
#pragma unroll
        for (u32 k = 0; k < N; k++)
#pragma unroll
            for (u32 c = 0; c < 8; c++) {
                float d = x[k][c] * ia - y[k][c] * ib;
                total += w[k][c] * d * d;
            }
    });
    return total;
}

template <u32 N>
__device__ __forceinline__ void kept_gradients(uint4* dx, View a, View b, const float* weights, float factor, u32 pixels, u32 channels, Draw draw, float rate, int add) {
    each_kept_pixel<N>(a, b, weights, pixels, channels, draw, rate, [&](u32 first, u32 lanes, bool (&there)[N], float (&x)[N][8], float (&y)[N][8], float (&w)[N][8]) {
        float xx = 0.0f, yy = 0.0f, inner = 0.0f;
#pragma unroll
        for (u32 k = 0; k < N; k++)
#pragma unroll
            for (u32 c = 0; c < 8; c++) {
                xx += x[k][c] * x[k][c];
                yy += y[k][c] * y[k][c];
            }
        float length = sqrtf(sum_over(xx, lanes)), ix = 1.0f / (length + TINY), iy = 1.0f / (sqrtf(sum_over(yy, lanes)) + TINY);
#pragma unroll
        for (u32 k = 0; k < N; k++)
#pragma unroll
            for (u32 c = 0; c < 8; c++) {
                w[k][c] *= 2.0f * factor * (x[k][c] * ix - y[k][c] * iy);
                inner += w[k][c] * x[k][c];
            }
        inner = sum_over(inner, lanes) * ix * ix;
        float along = length > 0.0f ? inner / length : 0.0f;
#pragma unroll
        for (u32 k = 0; k < N; k++) {
            if (!there[k]) continue;
            uint4* to = dx + first + k * lanes;
            float before[8] = {};
            if (add) widen_unit(before, *to);
#pragma unroll
            for (u32 c = 0; c < 8; c++) before[c] += w[k][c] * ix - along * x[k][c];
            *to = narrow_unit(before);
        }
    });
}

// One sum per block: parts [blocks].
extern "C" __global__ void __launch_bounds__(256, 4) perceptual(View a, View b, const float* weights, double* parts, u32 pixels, u32 channels, float rate, const u32* state, u32 site) {
    Draw draw = draw_of(state, site);
    u32 lanes = lanes_of(channels), lane = threadIdx.x % lanes, each = blockDim.x / lanes, step = gridDim.x * each;
    float total = 0.0f;
    if (are_kept(a, b, channels))
        total = are_kept_twice(channels) ? kept_distances<2>(a, b, weights, pixels, channels, draw, rate)
                                         : kept_distances<1>(a, b, weights, pixels, channels, draw, rate);
    else for (u32 start = blockIdx.x * each; start < pixels; start += step) {
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
extern "C" __global__ void __launch_bounds__(256, 4) perceptual_gradient(View dx, View x, View y, const float* weights, const float* dy, u32 pixels, u32 channels, float rate,
    const u32* state, u32 site, int add) {
    Draw draw = draw_of(state, site);
    float factor = dy[0] / (float)pixels;
    if (are_kept(x, y, channels) && dx.bf16) {
        if (are_kept_twice(channels)) kept_gradients<2>((uint4*)dx.p, x, y, weights, factor, pixels, channels, draw, rate, add);
        else kept_gradients<1>((uint4*)dx.p, x, y, weights, factor, pixels, channels, draw, rate, add);
        return;
    }
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
