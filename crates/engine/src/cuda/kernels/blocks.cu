// Residual and attention blocks over small images of 64 channels, where there are no gradients to prepare: a block of threads per image, and everything
// in between in shared memory. As kernels of their own, the steps of such a block would mostly wait for each other. And a convolution to few channels.
//
// A picture in shared memory is a row of pixels of 128 bytes: eight units of eight channels, in an order that keeps the accesses of a warp in different
// banks. In a warp, `group` (lane / 4) is the row of either side of a product and `member` (lane % 4) says which columns.
//
// These are kernels of a chain: until await_earlier() they read only parameters.

namespace blocks {

constexpr u32 CHANNELS = 64, PIXEL = 2 * CHANNELS, UNITS = 8;

// Where in its pixel a unit lies. Eight neighbours have it in eight different places, and two have four of them in opposite halves.
__device__ __forceinline__ u32 unit_in(u32 pixel, u32 unit) { return (unit ^ (pixel << 2 & 4 | pixel >> 1 & 3)) << 4; }

__device__ __forceinline__ u32 unit_at(u32 pixel, u32 unit) { return pixel * PIXEL + unit_in(pixel, unit); }

__device__ __forceinline__ uint4& unit_of(u8* picture, u32 pixel, u32 unit) { return *(uint4*)(picture + unit_at(pixel, unit)); }

// Two neighbouring channels; the first of them is even.
__device__ __forceinline__ u32& pair_of(u8* picture, u32 pixel, u32 channel) { return *(u32*)(picture + unit_at(pixel, channel / 8) + channel % 8 * 2); }

// Starts to copy rows of 64, pixels of an image or rows of a weight.
__device__ __forceinline__ void fetch_picture(u8* picture, const u16* from, u32 rows) {
#pragma unroll 1
    for (u32 i = threadIdx.x; i < rows * UNITS; i += blockDim.x) fetch(&unit_of(picture, i / UNITS, i % UNITS), from + i * 8);
}

// Gain and shift of a group-norm for the channel of each of the first threads.
__device__ __forceinline__ float2 load_norm(const float* gain, const float* shift) {
    return threadIdx.x < CHANNELS ? make_float2(gain[threadIdx.x], shift[threadIdx.x]) : make_float2(0.0f, 0.0f);
}

// Normalises a picture; `put` gets (pixel, unit, values) and may write them to where they come from. The groups divide the channels, so they are a power
// of two.
template <u32 WARPS, typename F>
__device__ __forceinline__ void normalise(u8* picture, u32 pixels, float2 norm, u32 groups, float epsilon, bool swish, F put) {
    __shared__ __align__(16) float shares[WARPS][2][CHANNELS];
    __shared__ __align__(16) float factors[2][CHANNELS];
    u32 unit = threadIdx.x % UNITS, first = threadIdx.x / UNITS, step = WARPS * 32 / UNITS, lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    u32 per = CHANNELS / groups;
    // Measured from one of the group's own elements, no group is so far from zero that its variance is lost in the squares.
    auto origin_of = [&](u32 channel) { return widen(((const u16*)picture)[channel & ~(per - 1)]); };
    float origin[8], v[8], sums[8] = {}, squares[8] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) origin[i] = origin_of(unit * 8 + i);
#pragma unroll 1
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
    }
    __syncthreads();
    if (threadIdx.x < CHANNELS) {
        u32 start = threadIdx.x & ~(per - 1);
        float sum = 0.0f, square = 0.0f, part = 1.0f / (pixels * per);
#pragma unroll 1
        for (u32 c = start; c < start + per; c++)
#pragma unroll
            for (u32 w = 0; w < WARPS; w++) {
                sum += shares[w][0][c];
                square += shares[w][1][c];
            }
        float offset = sum * part, variance = square * part - offset * offset;
        float scale = norm.x * rsqrtf((variance < 0.0f ? 0.0f : variance) + epsilon);
        factors[0][threadIdx.x] = scale;
        factors[1][threadIdx.x] = norm.y - (origin_of(threadIdx.x) + offset) * scale;
    }
    __syncthreads();
    float scale[8], offset[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        scale[i] = factors[0][unit * 8 + i];
        offset[i] = factors[1][unit * 8 + i];
    }
#pragma unroll 1
    for (u32 pixel = first; pixel < pixels; pixel += step) {
        widen_unit(v, unit_of(picture, pixel, unit));
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = swished(v[i] * scale[i] + offset[i], swish);
        put(pixel, unit, narrow_unit(v));
    }
    __syncthreads();
}

// ---- residual block: four warps have 16 output channels each, and the other four the same; the first take one half of the inputs, the others the other ----

constexpr u32 PLACES = 9; // of a 3x3 weight
// Pixels that are worked on at a time, and floats from one to the next where the second half's sums are handed over: in different banks.
constexpr u32 ROUND = 64, ROOM = 72;

__device__ __forceinline__ u32 first_output() { return threadIdx.x / 32 % 4 * 16; }

// Four warps' unit of the inputs; the other four have the other half.
__device__ __forceinline__ u32 own_unit() { return threadIdx.x / 128 * 4 + (threadIdx.x & 3); }

// A warp's part of a weight [64, 3, 3, 64]: the lane's eight inputs of two outputs. In which order the tensor cores see the inputs is free as long as both
// sides agree, so these are neighbours.
__device__ __forceinline__ void load_weight(uint4 (&w)[2][PLACES], const u16* weight) {
    u32 group = (threadIdx.x & 31) / 4;
    const u16* from = weight + (first_output() + group) * (PLACES * CHANNELS) + own_unit() * 8;
#pragma unroll
    for (u32 n = 0; n < 2; n++)
#pragma unroll
        for (u32 place = 0; place < PLACES; place++) w[n][place] = load_words(from + (n * 8 * PLACES + place) * CHANNELS);
}

__device__ __forceinline__ void load_bias(float2 (&b)[2], const float* bias) {
#pragma unroll
    for (u32 n = 0; n < 2; n++) b[n] = *(const float2*)(bias + first_output() + n * 8 + (threadIdx.x & 3) * 2);
}

// Where a unit lies in a picture with a border, whose lines are `line` pixels: in the same order in all lines.
__device__ __forceinline__ u32 bordered_at(u32 y, u32 x, u32 line, u32 unit) { return (y * line + x) * PIXEL + unit_in(x, unit); }

// Writes a unit into such a picture in the order that load_weight has: a pair of channels from each of four units is one that a lane loads.
__device__ __forceinline__ void put_bordered(u8* picture, u32 y, u32 x, u32 line, u32 unit, uint4 v) {
    u32 pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (u32 i = 0; i < 4; i++) *(u32*)(picture + bordered_at(y, x, line, (unit & 4) + i) + unit % 4 * 4) = pairs[i];
}

// Two neighbouring channels of each of the lane's pixels, as far as they exist.
template <u32 TILES, typename F> __device__ __forceinline__ void each_pair(const float (&sums)[TILES][2][4], u32 pixels, F work) {
    u32 group = (threadIdx.x & 31) / 4, member = threadIdx.x & 3;
#pragma unroll
    for (u32 tile = 0; tile < TILES; tile++)
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            u32 pixel = tile * 16 + i * 8 + group;
            if (pixel < pixels)
#pragma unroll
                for (u32 n = 0; n < 2; n++) work(pixel, n, first_output() + n * 8 + member * 2, make_float2(sums[tile][n][2 * i], sums[tile][n][2 * i + 1]));
        }
}

// A 3x3 convolution of a picture that has a border of zeros, TILES tiles of 16 pixels at a time. `take` gets two neighbouring channels of a pixel:
// (pixel, n, channel, values). `shares` has room for two rounds, or for all pixels if they are fewer.
template <u32 TILES, typename F>
__device__ __forceinline__ void convolve(const u8* picture, float* shares, const uint4 (&w)[2][PLACES], u32 pixels, u32 width, F take) {
    u32 lane = threadIdx.x & 31, line = width + 2;
    bool first = threadIdx.x < 128;
    for (u32 round = 0; round < pixels; round += ROUND) {
        float* handed = shares + round / ROUND % 2 * (ROUND * ROOM);
        u32 left = pixels - round;
        // What this lane says where to load: of each tile a pixel at the three places of a line.
        u32 at[TILES][3];
        float sums[TILES][2][4] = {};
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++) {
            // A pixel that does not exist is another one whose results are thrown away.
            u32 pixel = min(round + tile * 16 + lane % 16, pixels - 1), y = pixel / width, x = pixel % width;
#pragma unroll
            for (u32 place = 0; place < 3; place++)
                at[tile][place] = (u32)__cvta_generic_to_shared(picture) + bordered_at(y, x + place, line, (first ? 0 : 4) + lane / 16);
        }
#pragma unroll
        for (u32 place = 0; place < PLACES; place++) {
            u32 down = place / 3 * line * PIXEL;
            uint4 a[TILES];
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++) a[tile] = load_tiles(at[tile][place % 3] + down);
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++)
#pragma unroll
                for (u32 n = 0; n < 2; n++) multiply(sums[tile][n], a[tile].x, a[tile].y, a[tile].z, a[tile].w, w[n][place].x, w[n][place].y);
            // The other two units lie 32 bytes up or down.
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++) a[tile] = load_tiles((at[tile][place % 3] ^ 32) + down);
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++)
#pragma unroll
                for (u32 n = 0; n < 2; n++) multiply(sums[tile][n], a[tile].x, a[tile].y, a[tile].z, a[tile].w, w[n][place].z, w[n][place].w);
        }
        if (!first)
            each_pair(sums, left, [&](u32 pixel, u32 n, u32 channel, float2 v) { *(float2*)(handed + pixel * ROOM + channel) = v; });
        __syncthreads();
        if (first)
            each_pair(sums, left, [&](u32 pixel, u32 n, u32 channel, float2 v) {
                float2 other = *(const float2*)(handed + pixel * ROOM + channel);
                take(round + pixel, n, channel, make_float2(v.x + other.x, v.y + other.y));
            });
    }
}

// out = x + conv(swish(norm(conv(swish(norm(x)))))): [B, height, width, 64]. Shared: the image, what the first convolution makes of it, what a
// convolution looks at, with its border, and what the warps hand over.
template <u32 TILES>
__device__ __forceinline__ void resolve(u16* out, const u16* x, const float* gain1, const float* shift1, const u16* weight1, const float* bias1,
    const float* gain2, const float* shift2, const u16* weight2, const float* bias2, u32 height, u32 width, u32 groups, float epsilon) {
    extern __shared__ __align__(128) u8 room[];
    u32 pixels = height * width, line = width + 2, bordered = (height + 2) * line;
    u8 *image = room, *between = image + pixels * PIXEL, *seen = between + pixels * PIXEL;
    float* shares = (float*)(seen + bordered * PIXEL);
    size_t base = (size_t)blockIdx.x * pixels * CHANNELS;
    uint4 w[2][PLACES];
    float2 bias[2], norm1 = load_norm(gain1, shift1), norm2 = load_norm(gain2, shift2);
    load_weight(w, weight1);
    load_bias(bias, bias1);
#pragma unroll 1
    for (u32 i = threadIdx.x; i < bordered * UNITS; i += blockDim.x) *(uint4*)(seen + i * 16) = make_uint4(0, 0, 0, 0);
    await_earlier();
    admit_next();
    fetch_picture(image, x + base, pixels);
    await_fetches();
    __syncthreads();
    // One after the other with the same instructions: fetching them takes its time, too.
#pragma unroll 1
    for (u32 pass = 0; pass < 2; pass++) {
        normalise<8>(pass == 0 ? image : between, pixels, pass == 0 ? norm1 : norm2, groups, epsilon, true, [&](u32 pixel, u32 unit, uint4 v) {
            put_bordered(seen, pixel / width + 1, pixel % width + 1, line, unit, v);
        });
        convolve<TILES>(seen, shares, w, pixels, width, [&](u32 pixel, u32 n, u32 channel, float2 v) {
            if (pass == 0) {
                pair_of(between, pixel, channel) = narrow_pair(v.x + bias[n].x, v.y + bias[n].y);
            } else {
                u32 start = pair_of(image, pixel, channel);
                *(u32*)(out + base + pixel * CHANNELS + channel) = narrow_pair(low_half(start) + v.x + bias[n].x, high_half(start) + v.y + bias[n].y);
            }
        });
        if (pass == 0) {
            load_weight(w, weight2);
            load_bias(bias, bias2);
        }
        __syncthreads();
    }
}

#define RESIDUAL_BLOCK(NAME, TILES) \
    extern "C" __global__ void __launch_bounds__(256, 1) \
    NAME(u16* out, const u16* x, const float* gain1, const float* shift1, const u16* weight1, const float* bias1, const float* gain2, \
        const float* shift2, const u16* weight2, const float* bias2, u32 height, u32 width, u32 groups, float epsilon) { \
        resolve<TILES>(out, x, gain1, shift1, weight1, bias1, gain2, shift2, weight2, bias2, height, width, groups, epsilon); \
    }

RESIDUAL_BLOCK(residual_block_16, 1)
RESIDUAL_BLOCK(residual_block, 4)

// ---- attention block: a warp has tiles of 16 pixels ----

// A tile of a picture as the first operand of four products, of 16 channels each.
struct Tile {
    uint4 step[4];
};

__device__ __forceinline__ u32 address_of(u8* picture, u32 pixel, u32 unit) { return (u32)__cvta_generic_to_shared(picture) + unit_at(pixel, unit); }

__device__ __forceinline__ Tile load_tile(u8* picture, u32 tile) {
    u32 lane = threadIdx.x & 31;
    Tile t;
#pragma unroll
    for (u32 step = 0; step < 4; step++) t.step[step] = load_tiles(address_of(picture, tile * 16 + lane % 16, 2 * step + lane / 16));
    return t;
}

// sums [16, 8] += a tile times rows `first..first + 8` of another picture, or of a weight.
__device__ __forceinline__ void multiply_rows(float (&sums)[4], const Tile& t, u8* rows, u32 first) {
    u32 lane = threadIdx.x & 31;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        uint4 b = load_tiles(address_of(rows, first + lane % 8, half * 4 + lane / 8));
        uint4 p = t.step[2 * half], q = t.step[2 * half + 1];
        multiply(sums, p.x, p.y, p.z, p.w, b.x, b.y);
        multiply(sums, q.x, q.y, q.z, q.w, b.z, b.w);
    }
}

// out = x + last(attention(query(h), key(h), value(h))) with h = norm(x): [B, pixels, 64], whole tiles of pixels. Weights [64, 64]. Shared: h, queries,
// keys, values, and the four weights.
extern "C" __global__ void __launch_bounds__(512, 1)
attention_block(u16* out, const u16* x, const float* gain, const float* shift, const u16* query, const float* query_bias, const u16* key,
    const float* key_bias, const u16* value, const float* value_bias, const u16* last, const float* last_bias, u32 pixels, u32 groups, float epsilon,
    float scale) {
    constexpr u32 WARPS = 16, KEYS = 8; // of eight, at a time
    extern __shared__ __align__(128) u8 pictures[];
    u32 lane = threadIdx.x & 31, group = lane / 4, member = lane & 3, warp = threadIdx.x / 32, tiles = pixels / 16, size = pixels * PIXEL;
    u8 *h = pictures, *queries = h + size, *keys = queries + size, *values = keys + size, *weights = values + size;
    size_t base = (size_t)blockIdx.x * pixels * CHANNELS;
    float2 norm = load_norm(gain, shift);
    fetch_picture(weights, query, CHANNELS);
    fetch_picture(weights + CHANNELS * PIXEL, key, CHANNELS);
    fetch_picture(weights + 2 * CHANNELS * PIXEL, value, CHANNELS);
    fetch_picture(weights + 3 * CHANNELS * PIXEL, last, CHANNELS);
    await_earlier();
    admit_next();
    fetch_picture(h, x + base, pixels);
    await_fetches();
    __syncthreads();
    normalise<WARPS>(h, pixels, norm, groups, epsilon, false, [&](u32 pixel, u32 unit, uint4 v) { unit_of(h, pixel, unit) = v; });
    for (u32 item = warp; item < 3 * tiles; item += WARPS) {
        u32 which = item / tiles, tile = item % tiles;
        const float* bias = which == 0 ? query_bias : which == 1 ? key_bias : value_bias;
        u8* to = queries + which * size;
        Tile t = load_tile(h, tile);
#pragma unroll
        for (u32 n = 0; n < 8; n++) {
            float sums[4] = {};
            multiply_rows(sums, t, weights + which * (CHANNELS * PIXEL), n * 8);
            u32 channel = n * 8 + member * 2;
            float2 b = *(const float2*)(bias + channel);
            pair_of(to, tile * 16 + group, channel) = narrow_pair(sums[0] + b.x, sums[1] + b.y);
            pair_of(to, tile * 16 + 8 + group, channel) = narrow_pair(sums[2] + b.x, sums[3] + b.y);
        }
    }
    __syncthreads();
    // Weights are powers of two of differences of scores.
    float factor = scale * 1.44269504f;
    for (u32 tile = warp; tile < tiles; tile += WARPS) {
        float blend[8][4] = {}, best[2] = {-1e30f, -1e30f}, total[2] = {0.0f, 0.0f};
        Tile own = load_tile(queries, tile);
        for (u32 first = 0; first < pixels; first += KEYS * 8) {
            float scores[KEYS][4], top[2] = {best[0], best[1]};
#pragma unroll
            for (u32 n = 0; n < KEYS; n++) {
                bool there = first + n * 8 < pixels;
#pragma unroll
                for (int i = 0; i < 4; i++) scores[n][i] = 0.0f;
                // Keys that are not there are others, which get no weight.
                multiply_rows(scores[n], own, keys, there ? first + n * 8 : 0);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    if (!there) scores[n][i] = -1e30f;
                    top[i / 2] = fmaxf(top[i / 2], scores[n][i]);
                }
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int o = 1; o < 4; o *= 2) top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], o));
                float fade = exp2f((best[i] - top[i]) * factor);
                best[i] = top[i];
                total[i] *= fade;
#pragma unroll
                for (u32 n = 0; n < 8; n++) {
                    blend[n][2 * i] *= fade;
                    blend[n][2 * i + 1] *= fade;
                }
            }
#pragma unroll
            for (u32 step = 0; step < KEYS / 2; step++) {
                if (first + step * 16 >= pixels) break;
                u32 a[4];
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    const float* s = scores[2 * step + i / 2] + i % 2 * 2;
                    float low = exp2f((s[0] - best[i % 2]) * factor), high = exp2f((s[1] - best[i % 2]) * factor);
                    total[i % 2] += low + high;
                    a[i] = narrow_pair(low, high);
                }
#pragma unroll
                for (u32 n = 0; n < 8; n += 2) {
                    uint4 v = load_tiles_transposed(address_of(values, first + step * 16 + lane % 16, n + lane / 16));
                    multiply(blend[n], a[0], a[1], a[2], a[3], v.x, v.y);
                    multiply(blend[n + 1], a[0], a[1], a[2], a[3], v.z, v.w);
                }
            }
        }
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
            multiply_rows(sums, attended, weights + 3 * (CHANNELS * PIXEL), n * 8);
            u32 channel = n * 8 + member * 2;
            float2 b = *(const float2*)(last_bias + channel);
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                size_t at = base + (tile * 16 + i * 8 + group) * CHANNELS + channel;
                u32 start = load_word(x + at);
                *(u32*)(out + at) = narrow_pair(low_half(start) + sums[2 * i] + b.x, high_half(start) + sums[2 * i + 1] + b.y);
            }
        }
    }
}

// ---- a 3x3 convolution to at most eight channels: a block has some rows of an image ----

// out [B, height, width, outputs] <- x [B, height, width, 64], weight [outputs, 3, 3, 64], bias [outputs] if there is one. Eight warps; `rows` rows and `columns` columns each time.
// Shared: those, with a border.
extern "C" __global__ void __launch_bounds__(256, 2)
narrow_conv(u16* out, const u16* x, const u16* weight, const float* bias, u32 height, u32 width, u32 outputs, u32 rows, u32 columns, int activate) {
    constexpr u32 TILES = 2;
    extern __shared__ __align__(128) u8 seen[];
    u32 lane = threadIdx.x & 31, group = lane / 4, member = lane & 3, warp = threadIdx.x / 32, line = columns + 2;
    u32 across = (width + columns - 1) / columns, down = (height + rows - 1) / rows, image = blockIdx.x / (across * down);
    u32 top = blockIdx.x / across % down * rows, left = blockIdx.x % across * columns;
    x += (size_t)image * height * width * CHANNELS;
    out += (size_t)image * height * width * outputs;
    // 16 inputs of the lane's output at a time, where there is one.
    uint2 w[4 * PLACES];
#pragma unroll
    for (u32 chunk = 0; chunk < 4 * PLACES; chunk++) {
        const u16* from = weight + (group * 4 * PLACES + chunk) * 16 + member * 2;
        w[chunk] = group < outputs ? make_uint2(*(const u32*)from, *(const u32*)(from + 8)) : make_uint2(0, 0);
    }
    float b[2];
#pragma unroll
    for (u32 i = 0; i < 2; i++) b[i] = bias && member * 2 + i < outputs ? bias[member * 2 + i] : 0.0f;
    await_earlier();
    admit_next();
#pragma unroll 1
    for (u32 i = threadIdx.x; i < (rows + 2) * line * UNITS; i += blockDim.x) {
        u32 pixel = i / UNITS, y = top + pixel / line - 1, c = left + pixel % line - 1;
        // One before the first is far behind the last.
        u8* to = seen + bordered_at(pixel / line, pixel % line, line, i % UNITS);
        if (y < height && c < width) fetch(to, x + ((size_t)y * width + c) * CHANNELS + i % UNITS * 8);
        else *(uint4*)to = make_uint4(0, 0, 0, 0);
    }
    await_fetches();
    __syncthreads();
    u32 pixels = rows * columns;
    for (u32 first = warp * TILES * 16; first < pixels; first += 8 * TILES * 16) {
        // What this lane says where to load: of each tile a pixel at the three places of a line.
        u32 at[TILES][3];
        float sums[TILES][4] = {};
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++) {
            u32 pixel = min(first + tile * 16 + lane % 16, pixels - 1), y = pixel / columns, c = pixel % columns;
#pragma unroll
            for (u32 place = 0; place < 3; place++) at[tile][place] = (u32)__cvta_generic_to_shared(seen) + bordered_at(y, c + place, line, lane / 16);
        }
#pragma unroll
        for (u32 chunk = 0; chunk < 4 * PLACES; chunk++) {
            u32 below = chunk / 12 * line * PIXEL;
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++) {
                uint4 a = load_tiles((at[tile][chunk / 4 % 3] ^ chunk % 4 * 32) + below);
                multiply(sums[tile], a.x, a.y, a.z, a.w, w[chunk].x, w[chunk].y);
            }
        }
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                u32 pixel = first + tile * 16 + i / 2 * 8 + group, y = top + pixel / columns, c = left + pixel % columns, output = member * 2 + i % 2;
                float v = sums[tile][i] + b[i % 2];
                if (pixel < pixels && y < height && c < width && output < outputs)
                    out[((size_t)y * width + c) * outputs + output] = narrow(activate ? relu(v) : v);
            }
    }
}

} // namespace blocks
