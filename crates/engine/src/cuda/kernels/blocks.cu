// Residual and attention blocks over small images of 64 channels, where there are no gradients to prepare: a block of eight warps per image, and
// everything in between in shared memory. As kernels of their own, the steps of such a block would mostly wait for each other.
//
// A picture in shared memory is a row of pixels of 128 bytes: eight units of eight channels, in an order that keeps the accesses of a warp in different
// banks. Products are those of decode.cu: a lane takes eight neighbouring channels of either side, since the order in which the tensor cores see
// the channels is free. In a warp, `group` (lane / 4) is the pixel and, on the other side, the row of the weight; `member` (lane % 4) says which channels.
//
// These are kernels of a chain: until await_earlier() they read only parameters.

namespace blocks {

constexpr u32 CHANNELS = 64, WARPS = 8, THREADS = 32 * WARPS, PIXEL = 2 * CHANNELS, UNITS = 8;

// Where a unit of a pixel lies. Eight neighbouring pixels have it in eight different places, and two have four of them in opposite halves.
__device__ __forceinline__ u32 unit_at(u32 pixel, u32 unit) { return pixel * PIXEL + ((unit ^ (pixel << 2 & 4 | pixel >> 1 & 3)) << 4); }

__device__ __forceinline__ uint4& unit_of(u8* picture, u32 pixel, u32 unit) { return *(uint4*)(picture + unit_at(pixel, unit)); }

// Two neighbouring channels; the first of them is even.
__device__ __forceinline__ u32& pair_of(u8* picture, u32 pixel, u32 channel) { return *(u32*)(picture + unit_at(pixel, channel / 8) + channel % 8 * 2); }

__device__ __forceinline__ void widen_unit(float (&v)[8], const uint4& unit) {
    v[0] = low_half(unit.x); v[1] = high_half(unit.x); v[2] = low_half(unit.y); v[3] = high_half(unit.y);
    v[4] = low_half(unit.z); v[5] = high_half(unit.z); v[6] = low_half(unit.w); v[7] = high_half(unit.w);
}

__device__ __forceinline__ uint4 narrow_unit(const float (&v)[8]) {
    return make_uint4(narrow_pair(v[0], v[1]), narrow_pair(v[2], v[3]), narrow_pair(v[4], v[5]), narrow_pair(v[6], v[7]));
}

// The image [pixels, 64] as a picture.
__device__ __forceinline__ void load_picture(u8* picture, const u16* image, u32 pixels) {
    for (u32 i = threadIdx.x; i < pixels * UNITS; i += THREADS) fetch(&unit_of(picture, i / UNITS, i % UNITS), image + i * 8);
    await_fetches();
    __syncthreads();
}

// Gain and shift of a group-norm.
struct Norm {
    const float *gain, *shift;
};

// Normalises a picture into `out`, whose pixels are numbered by `place`; it may be the same picture with the same numbers.
template <typename F>
__device__ __forceinline__ void normalise(u8* out, u8* picture, u32 pixels, Norm norm, u32 groups, float epsilon, bool swish, F place) {
    __shared__ __align__(16) float shares[WARPS][2][CHANNELS];
    __shared__ __align__(16) float totals[5 * CHANNELS];
    u32 unit = threadIdx.x % UNITS, first = threadIdx.x / UNITS, step = THREADS / UNITS, lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    float origin[8], v[8], sums[8] = {}, squares[8] = {};
    widen_unit(origin, unit_of(picture, 0, unit));
    for (u32 pixel = first; pixel < pixels; pixel += step) {
        widen_unit(v, unit_of(picture, pixel, unit));
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float d = v[i] - origin[i];
            sums[i] += d;
            squares[i] += d * d;
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
#pragma unroll
        for (int o = 8; o < 32; o *= 2) {
            sums[i] += __shfl_xor_sync(~0u, sums[i], o);
            squares[i] += __shfl_xor_sync(~0u, squares[i], o);
        }
        if (lane < UNITS) {
            shares[warp][0][unit * 8 + i] = sums[i];
            shares[warp][1][unit * 8 + i] = squares[i];
        }
        if (threadIdx.x < UNITS) totals[4 * CHANNELS + unit * 8 + i] = origin[i];
    }
    __syncthreads();
    if (threadIdx.x < 2 * CHANNELS) {
        float sum = 0.0f;
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) sum += shares[w][threadIdx.x / CHANNELS][threadIdx.x % CHANNELS];
        totals[threadIdx.x] = sum;
    }
    __syncthreads();
    group_statistics(totals, pixels, CHANNELS, groups, epsilon);
    float scale[8], offset[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        u32 c = unit * 8 + i;
        scale[i] = totals[3 * CHANNELS + c] * norm.gain[c];
        offset[i] = norm.shift[c] - totals[2 * CHANNELS + c] * scale[i];
    }
    for (u32 pixel = first; pixel < pixels; pixel += step) {
        widen_unit(v, unit_of(picture, pixel, unit));
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = swished(v[i] * scale[i] + offset[i], swish);
        unit_of(out, place(pixel), unit) = narrow_unit(v);
    }
    __syncthreads();
}

// ---- residual block: the first four warps have 16 output channels each, the others the same for other pixels ----

constexpr u32 CHUNKS = 18; // of 32 inputs: two for each of a 3x3 weight's places

__device__ __forceinline__ u32 first_output() { return threadIdx.x / 32 % 4 * 16; }

// A warp's part of a weight [64, 3, 3, 64]: the lane's eight inputs of two outputs.
__device__ __forceinline__ void load_weight(uint4 (&w)[2][CHUNKS], const u16* weight) {
    u32 group = (threadIdx.x & 31) / 4, member = threadIdx.x & 3;
    const u16* from = weight + (first_output() + group) * (9 * CHANNELS) + member * 8;
#pragma unroll
    for (u32 n = 0; n < 2; n++)
#pragma unroll
        for (u32 chunk = 0; chunk < CHUNKS; chunk++) w[n][chunk] = load_words(from + n * 8 * 9 * CHANNELS + chunk * 32);
}

// A 3x3 convolution of a picture that has a border of zeros. `take` gets two neighbouring channels of a pixel: (pixel, n, channel, values).
template <typename F> __device__ __forceinline__ void convolve(u8* picture, const uint4 (&w)[2][CHUNKS], u32 pixels, u32 width, F take) {
    u32 group = (threadIdx.x & 31) / 4, member = threadIdx.x & 3, line = width + 2;
    for (u32 tile = threadIdx.x / 128; tile * 16 < pixels; tile += 2) {
        u32 corner[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            // A pixel that does not exist is another one whose results are thrown away.
            u32 pixel = min(tile * 16 + i * 8 + group, pixels - 1);
            corner[i] = pixel / width * line + pixel % width;
        }
        float even[2][4] = {}, odd[2][4] = {};
#pragma unroll
        for (u32 chunk = 0; chunk < CHUNKS; chunk++) {
            u32 there = chunk / 6 * line + chunk / 2 % 3, unit = chunk % 2 * 4 + member;
            uint4 p = unit_of(picture, corner[0] + there, unit), q = unit_of(picture, corner[1] + there, unit);
#pragma unroll
            for (u32 n = 0; n < 2; n++) {
                multiply(even[n], p.x, q.x, p.y, q.y, w[n][chunk].x, w[n][chunk].y);
                multiply(odd[n], p.z, q.z, p.w, q.w, w[n][chunk].z, w[n][chunk].w);
            }
        }
#pragma unroll
        for (u32 n = 0; n < 2; n++)
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                u32 pixel = tile * 16 + i * 8 + group, channel = first_output() + n * 8 + member * 2;
                if (pixel < pixels) take(pixel, n, channel, make_float2(even[n][2 * i] + odd[n][2 * i], even[n][2 * i + 1] + odd[n][2 * i + 1]));
            }
    }
}

__device__ __forceinline__ void load_bias(float2 (&b)[2], const float* bias) {
#pragma unroll
    for (u32 n = 0; n < 2; n++) b[n] = *(const float2*)(bias + first_output() + n * 8 + (threadIdx.x & 3) * 2);
}

// out = x + conv(swish(norm(conv(swish(norm(x)))))): [B, height, width, 64]. Shared: the image, what the first convolution makes of it, and what a
// convolution looks at, with its border.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
residual_block(u16* out, const u16* x, const float* gain1, const float* shift1, const u16* weight1, const float* bias1, const float* gain2, const float* shift2, const u16* weight2, const float* bias2, u32 height, u32 width, u32 groups, float epsilon) {
    extern __shared__ __align__(128) u8 pictures[];
    u32 pixels = height * width, line = width + 2, bordered = (height + 2) * line;
    u8 *image = pictures, *between = image + pixels * PIXEL, *seen = between + pixels * PIXEL;
    size_t base = (size_t)blockIdx.x * pixels * CHANNELS;
    uint4 w[2][CHUNKS];
    float2 bias[2];
    load_weight(w, weight1);
    load_bias(bias, bias1);
    for (u32 i = threadIdx.x; i < bordered * UNITS; i += THREADS) *(uint4*)(seen + i * 16) = make_uint4(0, 0, 0, 0);
    await_earlier();
    admit_next();
    auto inside = [&](u32 pixel) { return (pixel / width + 1) * line + pixel % width + 1; };
    load_picture(image, x + base, pixels);
    normalise(seen, image, pixels, Norm{gain1, shift1}, groups, epsilon, true, inside);
    convolve(seen, w, pixels, width, [&](u32 pixel, u32 n, u32 channel, float2 v) {
        pair_of(between, pixel, channel) = narrow_pair(v.x + bias[n].x, v.y + bias[n].y);
    });
    load_weight(w, weight2);
    load_bias(bias, bias2);
    __syncthreads();
    normalise(seen, between, pixels, Norm{gain2, shift2}, groups, epsilon, true, inside);
    convolve(seen, w, pixels, width, [&](u32 pixel, u32 n, u32 channel, float2 v) {
        u32 start = pair_of(image, pixel, channel);
        *(u32*)(out + base + pixel * CHANNELS + channel) = narrow_pair(low_half(start) + v.x + bias[n].x, high_half(start) + v.y + bias[n].y);
    });
}

// ---- attention block: a warp has tiles of 16 pixels ----

// The lane's part of a weight [64, 64].
__device__ __forceinline__ void load_weight(uint4 (&w)[8][2], const u16* weight) {
    u32 group = (threadIdx.x & 31) / 4, member = threadIdx.x & 3;
#pragma unroll
    for (u32 n = 0; n < 8; n++)
#pragma unroll
        for (u32 half = 0; half < 2; half++) w[n][half] = load_words(weight + (n * 8 + group) * CHANNELS + half * 32 + member * 8);
}

// The lane's part of a tile of a picture.
struct Tile {
    uint4 upper[2], lower[2];
};

__device__ __forceinline__ Tile load_tile(u8* picture, u32 tile) {
    u32 group = (threadIdx.x & 31) / 4, member = threadIdx.x & 3;
    Tile t;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        t.upper[half] = unit_of(picture, tile * 16 + group, half * 4 + member);
        t.lower[half] = unit_of(picture, tile * 16 + 8 + group, half * 4 + member);
    }
    return t;
}

// sums [16, 8] += a tile times eight rows of 64, of which the lane has `row`.
__device__ __forceinline__ void multiply_tile(float (&sums)[4], const Tile& t, const uint4 (&row)[2]) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        uint4 p = t.upper[half], q = t.lower[half], r = row[half];
        multiply(sums, p.x, q.x, p.y, q.y, r.x, r.y);
        multiply(sums, p.z, q.z, p.w, q.w, r.z, r.w);
    }
}

// out = x + last(attention(query(h), key(h), value(h))) with h = norm(x): [B, pixels, 64], whole tiles of pixels, TILES at most. Weights [64, 64].
// Shared: h, queries, keys, values.
template <int TILES>
__device__ __forceinline__ void attend(u16* out, const u16* x, Norm norm, const u16* const (&weights)[4], const float* const (&biases)[4], u32 pixels, u32 groups, float epsilon, float scale) {
    extern __shared__ __align__(128) u8 room[];
    u32 lane = threadIdx.x & 31, group = lane / 4, member = lane & 3, warp = threadIdx.x / 32, tiles = pixels / 16, size = pixels * PIXEL;
    u8 *h = room, *queries = h + size, *keys = queries + size, *values = keys + size;
    size_t base = (size_t)blockIdx.x * pixels * CHANNELS;
    uint4 w[8][2];
    u32 loaded = min(warp / tiles, 2u);
    load_weight(w, loaded == 0 ? weights[0] : loaded == 1 ? weights[1] : weights[2]);
    await_earlier();
    admit_next();
    load_picture(h, x + base, pixels);
    normalise(h, h, pixels, norm, groups, epsilon, false, [](u32 pixel) { return pixel; });
    for (u32 item = warp; item < 3 * tiles; item += WARPS) {
        u32 which = item / tiles, tile = item % tiles;
        if (which != loaded) {
            load_weight(w, which == 1 ? weights[1] : weights[2]);
            loaded = which;
        }
        const float* bias = which == 0 ? biases[0] : which == 1 ? biases[1] : biases[2];
        Tile t = load_tile(h, tile);
#pragma unroll
        for (u32 n = 0; n < 8; n++) {
            float sums[4] = {};
            multiply_tile(sums, t, w[n]);
            u32 channel = n * 8 + member * 2;
            float2 b = *(const float2*)(bias + channel);
            u8* to = queries + which * size;
            pair_of(to, tile * 16 + group, channel) = narrow_pair(sums[0] + b.x, sums[1] + b.y);
            pair_of(to, tile * 16 + 8 + group, channel) = narrow_pair(sums[2] + b.x, sums[3] + b.y);
        }
    }
    __syncthreads();
    // Weights are powers of two of differences of scores.
    float factor = scale * 1.44269504f;
    for (u32 tile = warp; tile < tiles; tile += WARPS) {
        float scores[2 * TILES][4], top[2] = {-1e30f, -1e30f}, total[2] = {0.0f, 0.0f};
        Tile query = load_tile(queries, tile);
#pragma unroll
        for (u32 n = 0; n < 2 * TILES; n++) {
            if (n >= 2 * tiles) break;
            uint4 key[2] = {unit_of(keys, n * 8 + group, member), unit_of(keys, n * 8 + group, 4 + member)};
            scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0.0f;
            multiply_tile(scores[n], query, key);
#pragma unroll
            for (int i = 0; i < 4; i++) top[i / 2] = fmaxf(top[i / 2], scores[n][i]);
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int o = 1; o < 4; o *= 2) top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], o));
        float blend[8][4] = {};
#pragma unroll
        for (u32 step = 0; step < TILES; step++) {
            if (step >= tiles) break;
#pragma unroll
            for (u32 n = 2 * step; n < 2 * step + 2; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    scores[n][i] = exp2f((scores[n][i] - top[i / 2]) * factor);
                    total[i / 2] += scores[n][i];
                }
            u32 a[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++) a[i] = narrow_pair(scores[2 * step + i / 2][i % 2 * 2], scores[2 * step + i / 2][i % 2 * 2 + 1]);
#pragma unroll
            for (u32 n = 0; n < 8; n += 2) {
                uint4 v = load_tiles_transposed((u32)__cvta_generic_to_shared(&unit_of(values, step * 16 + (lane & 15), n + lane / 16)));
                multiply(blend[n], a[0], a[1], a[2], a[3], v.x, v.y);
                multiply(blend[n + 1], a[0], a[1], a[2], a[3], v.z, v.w);
            }
        }
        load_weight(w, weights[3]);
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int o = 1; o < 4; o *= 2) total[i] += __shfl_xor_sync(~0u, total[i], o);
            total[i] = 1.0f / total[i];
        }
        // This warp's queries are not needed any more.
        __syncwarp();
#pragma unroll
        for (u32 n = 0; n < 8; n++) {
            u32 channel = n * 8 + member * 2;
            pair_of(queries, tile * 16 + group, channel) = narrow_pair(blend[n][0] * total[0], blend[n][1] * total[0]);
            pair_of(queries, tile * 16 + 8 + group, channel) = narrow_pair(blend[n][2] * total[1], blend[n][3] * total[1]);
        }
        __syncwarp();
        Tile attended = load_tile(queries, tile);
#pragma unroll
        for (u32 n = 0; n < 8; n++) {
            float sums[4] = {};
            multiply_tile(sums, attended, w[n]);
            u32 channel = n * 8 + member * 2;
            float2 b = *(const float2*)(biases[3] + channel);
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                size_t at = base + (tile * 16 + i * 8 + group) * CHANNELS + channel;
                u32 start = load_word(x + at);
                *(u32*)(out + at) = narrow_pair(low_half(start) + sums[2 * i] + b.x, high_half(start) + sums[2 * i + 1] + b.y);
            }
        }
    }
}

#define ATTENTION_BLOCK(NAME, TILES) \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) \
    NAME(u16* out, const u16* x, const float* gain, const float* shift, const u16* query, const float* query_bias, const u16* key, const float* key_bias, const u16* value, const float* value_bias, const u16* last, const float* last_bias, u32 pixels, u32 groups, float epsilon, float scale) { \
        const u16* const weights[4] = {query, key, value, last}; \
        const float* const biases[4] = {query_bias, key_bias, value_bias, last_bias}; \
        attend<TILES>(out, x, Norm{gain, shift}, weights, biases, pixels, groups, epsilon, scale); \
    }

ATTENTION_BLOCK(attention_block_16, 1)
ATTENTION_BLOCK(attention_block_64, 4)
ATTENTION_BLOCK(attention_block_256, 16)

} // namespace blocks
