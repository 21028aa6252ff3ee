// Perceptual distance: a group of lanes per pixel, four channels each where they come in fours.

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
extern "C" __global__ void perceptual_gradient(View dx, View x, View y, const float* weights, const float* dy, u32 pixels, u32 channels, float rate,
    const u32* state, u32 site, int add) {
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
