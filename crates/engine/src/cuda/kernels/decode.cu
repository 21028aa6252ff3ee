// One new token of every sequence: its embedding, five kernels per transformer block, the head. Each takes a few microseconds and computes so little
// that what counts is how soon the next load can be asked for.
//
// Products. A warp multiplies 16 rows of a weight [O, K] with 8 sequences, 32 columns at a time, in two steps of the tensor cores. In which order
// they see the columns is free as long as both sides agree, so a lane takes eight neighbours: 16 bytes of each row, straight from memory. The warps
// of a block share the columns out and add their results up in shared memory. In a warp, `group` (lane / 4) is the row of the weight and, on the
// other side, the sequence; `member` (lane % 4) says which columns.
//
// Chains. Directly after another of them, these kernels and `sample` start before that one has ended; the first of a chain starts like any other, when
// all before it has ended. Until await_earlier() they read only parameters and the key of the step's random numbers, which no kernel of a chain
// writes, and the past in the cache. The last to write that was an earlier call's decode_qkv, and it has ended: decode_attention, decode_expand and
// decode_head let the next kernel start only after their own wait. Every block waits, and nothing is written before.

namespace decode {

constexpr u32 SEQUENCES = 8, MOST_WARPS = 16, CONTRACT_WARPS = 12;

// Has an address worked out by now, rather than when it is needed.
__device__ __forceinline__ void settle(const void* p) { asm volatile("" ::"l"(p)); }

__device__ __forceinline__ uint2 load_two_words(const void* p) {
    uint2 w;
    asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(w.x), "=r"(w.y) : "l"(p) : "memory");
    return w;
}

__device__ __forceinline__ void store_pair(float* p, float low, float high) {
    asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(p), "f"(low), "f"(high) : "memory");
}

__device__ __forceinline__ const u8* address(View x, size_t i) { return (const u8*)x.p + (x.bf16 ? 2 * i : 4 * i); }

// Eight elements.
__device__ __forceinline__ void load_eight(const u8* p, bool bf16, float (&v)[8]) {
    if (bf16) {
        uint4 w = load_words(p);
        v[0] = low_half(w.x); v[1] = high_half(w.x); v[2] = low_half(w.y); v[3] = high_half(w.y);
        v[4] = low_half(w.z); v[5] = high_half(w.z); v[6] = low_half(w.w); v[7] = high_half(w.w);
    } else {
        uint4 a = load_words(p), b = load_words(p + 16);
        v[0] = __uint_as_float(a.x); v[1] = __uint_as_float(a.y); v[2] = __uint_as_float(a.z); v[3] = __uint_as_float(a.w);
        v[4] = __uint_as_float(b.x); v[5] = __uint_as_float(b.y); v[6] = __uint_as_float(b.z); v[7] = __uint_as_float(b.w);
    }
}

__device__ __forceinline__ float2 load_pair(const u8* p, bool bf16) {
    if (bf16) {
        u32 w = load_word(p);
        return make_float2(low_half(w), high_half(w));
    }
    uint2 w = load_two_words(p);
    return make_float2(__uint_as_float(w.x), __uint_as_float(w.y));
}

// A lane's eight columns of two of a weight's rows, eight apart.
struct Rows {
    uint4 upper, lower;
};

// `at` is the first of them in the upper row, of `width` elements.
__device__ __forceinline__ Rows load_rows(const u16* at, u32 width) {
    Rows rows;
    rows.upper = load_words(at);
    rows.lower = load_words(at + (size_t)8 * width);
    return rows;
}

// Half of a product over 32 columns, and the other half.
__device__ __forceinline__ void multiply_first(float (&sums)[4], const Rows& w, const uint4& x) {
    multiply(sums, w.upper.x, w.lower.x, w.upper.y, w.lower.y, x.x, x.y);
}

__device__ __forceinline__ void multiply_second(float (&sums)[4], const Rows& w, const uint4& x) {
    multiply(sums, w.upper.z, w.lower.z, w.upper.w, w.lower.w, x.z, x.w);
}

// ---- adding up the warps' shares of TILES tiles of 16 results for 8 sequences: [warp][tile][sequence, ROOM] ----

// So far apart that no two lanes write to the same bank.
constexpr u32 ROOM = 20;

template <int TILES> __device__ __forceinline__ void put_share(float* shares, u32 tile, const float (&sums)[4]) {
    u32 group = (threadIdx.x & 31) / 4, member = threadIdx.x & 3, warp = threadIdx.x / 32;
    float* to = shares + ((warp * TILES + tile) * SEQUENCES + 2 * member) * ROOM + group;
    to[0] = sums[0];
    to[ROOM] = sums[1];
    to[8] = sums[2];
    to[ROOM + 8] = sums[3];
}

// The warp's shares of its rows times x, a tile each.
template <int TILES> __device__ __forceinline__ void put_products(float* shares, const Rows (&rows)[TILES], const uint4& x) {
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        multiply_first(sums, rows[tile], x);
        multiply_second(sums, rows[tile], x);
        put_share<TILES>(shares, tile, sums);
    }
}

// Results `row` and `row + 1` of a tile; row is even.
template <int TILES> __device__ __forceinline__ float2 joined(const float* shares, u32 tile, u32 sequence, u32 row) {
    float2 sum = make_float2(0.0f, 0.0f);
    const float* from = shares + (tile * SEQUENCES + sequence) * ROOM + row;
#pragma unroll 8
    for (u32 warp = 0; warp < blockDim.x / 32; warp++) {
        float2 share = *(const float2*)(from + warp * TILES * SEQUENCES * ROOM);
        sum.x += share.x;
        sum.y += share.y;
    }
    return sum;
}

// ---- layer-norm, in blocks with a thread per column ----

// Starts to copy gain and shift to [2, width].
__device__ __forceinline__ void fetch_norm(float* norm, const float* gain, const float* shift, u32 width) {
    u32 i = threadIdx.x * 4;
    if (i < width) fetch(norm + i, gain + i);
    else if (i < 2 * width) fetch(norm + i, shift + (i - width));
}

// Where a lane finds its part of its row of x [batch, width].
struct Place {
    const u8 *row, *own;
};

__device__ __forceinline__ Place place_in(View x, u32 batch, u32 width) {
    u32 lane = threadIdx.x & 31;
    // A sequence that does not exist is another one whose results are thrown away.
    size_t at = (size_t)min(blockIdx.y * SEQUENCES + lane / 4, batch - 1) * width;
    Place place = {address(x, at), address(x, at + threadIdx.x / 32 * 32 + lane % 4 * 8)};
    settle(place.row);
    settle(place.own);
    return place;
}

// The normalised row at the lane's columns, as the products take it; `part` is 1 / width. Everything fetched is there after it.
__device__ __forceinline__ uint4 normalised(Place place, bool bf16, u32 width, const float* norm, float part, float epsilon) {
    __shared__ float2 shares[MOST_WARPS][SEQUENCES];
    u32 group = (threadIdx.x & 31) / 4, member = threadIdx.x & 3, warp = threadIdx.x / 32, column = warp * 32 + member * 8;
    float v[8];
    load_eight(place.own, bf16, v);
    // Measured from one of the row's own elements, no row is so far from zero that its variance is lost in the squares.
    float origin = load_pair(place.row, bf16).x;
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float d = v[i] - origin;
        sum += d;
        squares += d * d;
    }
#pragma unroll
    for (int o = 1; o < 4; o *= 2) {
        sum += __shfl_xor_sync(~0u, sum, o);
        squares += __shfl_xor_sync(~0u, squares, o);
    }
    if (member == 0) shares[warp][group] = make_float2(sum, squares);
    await_fetches();
    __syncthreads();
    sum = squares = 0.0f;
#pragma unroll 8
    for (u32 w = 0; w < blockDim.x / 32; w++) {
        float2 share = shares[w][group];
        sum += share.x;
        squares += share.y;
    }
    float offset = sum * part, mean = origin + offset;
    float inverse = rsqrtf(fmaxf(squares * part - offset * offset, 0.0f) + epsilon);
    u32 pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 gain = *(const float2*)(norm + column + 2 * i), shift = *(const float2*)(norm + width + column + 2 * i);
        pairs[i] = narrow_pair((v[2 * i] - mean) * inverse * gain.x + shift.x, (v[2 * i + 1] - mean) * inverse * gain.y + shift.y);
    }
    return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

// out [.., width] <- table[index] + positions, which come again after `period` elements; n elements in all, four per thread.
extern "C" __global__ void decode_embed(View out, const float* table, const int* indices, const float* positions, u32 width, u32 entries, u32 period, u32 n, int op, int* fault) {
    u32 i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    admit_next();
    float4 position = i < n ? *(const float4*)(positions + i % period) : make_float4(0, 0, 0, 0);
    await_earlier();
    if (i >= n) return;
    u32 index = load_word(indices + i / width);
    if (index >= entries) {
        if (i % width == 0) report(fault, INDEX_OUT_OF_RANGE, op, (int)index, (int)(i / width), (int)entries);
        index = 0;
    }
    float4 row = *(const float4*)(table + (size_t)index * width + i % width);
    put4(out, i, make_float4(row.x + position.x, row.y + position.y, row.z + position.z, row.w + position.w));
}

// q [batch, width] and the cache at `past` <- layer-norm(x) times three weights [width, width]. A block has 16 columns of each of the three.
extern "C" __global__ void __launch_bounds__(32 * MOST_WARPS, 2)
decode_qkv(u16* q, u16* keys, u16* values, View x, const float* gain, const float* shift, const u16* q_weight, const u16* k_weight,
    const u16* v_weight, const float* q_bias, const float* k_bias, const float* v_bias, u32 batch, u32 width, u32 capacity, u32 past, float epsilon) {
    extern __shared__ __align__(16) float shared[]; // gain, shift, shares
    __shared__ __align__(16) float bias[48];
    float *shares = shared + 2 * width, part = 1.0f / width;
    u32 lane = threadIdx.x & 31, column = threadIdx.x / 32 * 32 + (lane & 3) * 8, first = blockIdx.x * 16;
    admit_next();
    size_t at = (size_t)(first + lane / 4) * width + column;
    Rows rows[3] = {load_rows(q_weight + at, width), load_rows(k_weight + at, width), load_rows(v_weight + at, width)};
    fetch_norm(shared, gain, shift, width);
    if (threadIdx.x < 12) {
        const float* from = threadIdx.x < 4 ? q_bias : threadIdx.x < 8 ? k_bias : v_bias;
        fetch(bias + threadIdx.x * 4, from + first + threadIdx.x % 4 * 4);
    }
    Place place = place_in(x, batch, width);
    await_earlier();
    uint4 h = normalised(place, x.bf16, width, shared, part, epsilon);
    put_products(shares, rows, h);
    __syncthreads();
    for (u32 i = threadIdx.x; i < 3 * 64; i += blockDim.x) {
        u32 tile = i / 64, row = i % 8 * 2, sequence = blockIdx.y * SEQUENCES + i / 8 % 8, c = first + row;
        if (sequence >= batch) continue;
        float2 v = joined<3>(shares, tile, i / 8 % 8, row);
        u32 pair = narrow_pair(v.x + bias[tile * 16 + row], v.y + bias[tile * 16 + row + 1]);
        if (tile == 0) {
            *(u32*)(q + (size_t)sequence * width + c) = pair;
        } else {
            size_t head = (size_t)sequence * (width / 64) + c / 64;
            *(u32*)((tile == 1 ? keys : values) + (head * capacity + past) * 64 + c % 64) = pair;
        }
    }
}

// out [batch, width] <- x [batch, inputs] times the weight [width, inputs] + bias + start, if there is one. A block has 16 columns. Its warps load AHEAD chunks
// of 32 inputs each at once, if there are as many, and then one by one what is left over.
template <int AHEAD> __device__ __forceinline__ void add_product(float* shares, float* out, View start, const u16* x, const u16* weight,
    const float* bias, u32 batch, u32 width, u32 inputs) {
    u32 lane = threadIdx.x & 31, stride = blockDim.x, first = blockIdx.x * 16, column = threadIdx.x / 32 * 32 + (lane & 3) * 8;
    const u16* w = weight + (size_t)(first + lane / 4) * inputs + column;
    // A sequence that does not exist is another one whose results are thrown away.
    const u16* from = x + (size_t)min(blockIdx.y * SEQUENCES + lane / 4, batch - 1) * inputs + column;
    // The two results that a thread of the first two warps puts together.
    u32 row = threadIdx.x % 8 * 2, whose = threadIdx.x / 8 % 8, owner = blockIdx.y * SEQUENCES + whose;
    bool joins = threadIdx.x < 64 && owner < batch;
    size_t to = (size_t)owner * width + first + row;
    bool adds = joins && start.p;
    const u8* residual = address(start, to);
    admit_next();
    bool many = AHEAD == 1 || inputs >= AHEAD * stride;
    Rows rows[AHEAD];
    if (many) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) rows[i] = load_rows(w + i * stride, inputs);
    }
    uint2 biases = make_uint2(0, 0);
    if (joins) biases = load_two_words(bias + first + row);
    settle(from);
    settle(residual);
    await_earlier();
    float even[4] = {0.0f, 0.0f, 0.0f, 0.0f}, odd[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    float2 result = make_float2(0.0f, 0.0f);
    if (many) {
        uint4 v[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) v[i] = load_words(from + i * stride);
        if (adds) result = load_pair(residual, start.bf16);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            multiply_first(even, rows[i], v[i]);
            multiply_second(odd, rows[i], v[i]);
        }
    } else if (adds) {
        result = load_pair(residual, start.bf16);
    }
    if (AHEAD > 1) {
        for (u32 at = many ? AHEAD * stride : 0; at + column < inputs; at += stride) {
            Rows last = load_rows(w + at, inputs);
            uint4 v = load_words(from + at);
            multiply_first(even, last, v);
            multiply_second(odd, last, v);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) even[i] += odd[i];
    put_share<1>(shares, 0, even);
    __syncthreads();
    if (joins) {
        float2 v = joined<1>(shares, 0, whose, row);
        float low = result.x + v.x + __uint_as_float(biases.x), high = result.y + v.y + __uint_as_float(biases.y);
        store_pair(out + to, low, high);
    }
}

// With a warp for each chunk.
extern "C" __global__ void __launch_bounds__(32 * MOST_WARPS)
decode_project(float* out, View start, const u16* x, const u16* weight, const float* bias, u32 batch, u32 width, u32 inputs) {
    extern __shared__ __align__(16) float shared[]; // shares
    add_product<1>(shared, out, start, x, weight, bias, batch, width, inputs);
}

extern "C" __global__ void __launch_bounds__(32 * CONTRACT_WARPS, 2)
decode_contract(float* out, View start, const u16* x, const u16* weight, const float* bias, u32 batch, u32 width, u32 inputs) {
    extern __shared__ __align__(16) float shared[]; // shares
    add_product<4>(shared, out, start, x, weight, bias, batch, width, inputs);
}

// out [batch, outputs] <- activate(layer-norm(x) times the weight [outputs, width] + bias). A block has 64 columns. Shared: gain, shift, shares.
template <typename F> __device__ __forceinline__ void normed_product(float* shared, u16* out, View x, const float* gain, const float* shift,
    const u16* weight, const float* biases, u32 batch, u32 width, u32 outputs, float epsilon, F activate) {
    __shared__ __align__(16) float bias[64];
    float *shares = shared + 2 * width, part = 1.0f / width;
    u32 lane = threadIdx.x & 31, column = threadIdx.x / 32 * 32 + (lane & 3) * 8, first = blockIdx.x * 64;
    Rows rows[4];
#pragma unroll
    for (int tile = 0; tile < 4; tile++) rows[tile] = load_rows(weight + (size_t)(first + 16 * tile + lane / 4) * width + column, width);
    fetch_norm(shared, gain, shift, width);
    if (threadIdx.x < 16) fetch(bias + threadIdx.x * 4, biases + first + threadIdx.x * 4);
    Place place = place_in(x, batch, width);
    await_earlier();
    admit_next();
    uint4 h = normalised(place, x.bf16, width, shared, part, epsilon);
    put_products(shares, rows, h);
    __syncthreads();
    for (u32 i = threadIdx.x; i < 4 * 64; i += blockDim.x) {
        u32 tile = i / 64, row = i % 8 * 2, sequence = blockIdx.y * SEQUENCES + i / 8 % 8, c = tile * 16 + row;
        if (sequence >= batch) continue;
        float2 v = joined<4>(shares, tile, i / 8 % 8, row);
        *(u32*)(out + (size_t)sequence * outputs + first + c) = narrow_pair(activate(v.x + bias[c]), activate(v.y + bias[c + 1]));
    }
}

extern "C" __global__ void __launch_bounds__(32 * MOST_WARPS, 2)
decode_expand(u16* out, View x, const float* gain, const float* shift, const u16* weight, const float* bias, u32 batch, u32 width, u32 outputs, float epsilon) {
    extern __shared__ __align__(16) float shared[]; // gain, shift, shares
    normed_product(shared, out, x, gain, shift, weight, bias, batch, width, outputs, epsilon, [](float v) { return gelu(v); });
}

// The first half of a head; the second is decode_project without a start.
extern "C" __global__ void __launch_bounds__(32 * MOST_WARPS, 2)
decode_head(u16* out, View x, const float* gain, const float* shift, const u16* weight, const float* bias, u32 batch, u32 width, u32 outputs, float epsilon) {
    extern __shared__ __align__(16) float shared[]; // gain, shift, shares
    normed_product(shared, out, x, gain, shift, weight, bias, batch, width, outputs, epsilon, [](float v) { return relu(v); });
}

// ---- attention of one query per sequence and head, 64 wide: a block each ----

// A warp works on GROUPS groups of 16 positions side by side, TURNS times for the positions that the block holds at once.
constexpr u32 ATTENTION_WARPS = 4, GROUPS = 3, TURNS = 2, POSITIONS = 16 * GROUPS * TURNS * ATTENTION_WARPS;

// Where part `part` (eight elements) of a row of 64 lies: in another bank for each of eight rows that follow each other.
__device__ __forceinline__ u32 place(u32 row, u32 part) { return row * 128 + ((part ^ row) & 7) * 16; }

__device__ __forceinline__ void fetch_positions(u32 keys_at, u32 values_at, const u16* keys, const u16* values, u32 first, u32 from, u32 to) {
    for (u32 i = from * 8 + threadIdx.x; i < to * 8; i += blockDim.x) {
        u32 row = i / 8, part = i % 8;
        size_t at = (size_t)(first + row) * 64 + part * 8;
        fetch(keys_at + place(row, part), keys + at);
        fetch(values_at + place(row, part), values + at);
    }
}

// out, q [batch * heads, 64]; keys, values [batch * heads, capacity, 64], of which past + 1 positions are there. The key of a position is a row and
// the value a column of a product whose other side is the query or the weights, the same eight times.
extern "C" __global__ void __launch_bounds__(32 * ATTENTION_WARPS, 6)
decode_attention(u16* out, const u16* q, const u16* keys, const u16* values, u32 capacity, u32 past, float scale) {
    extern __shared__ __align__(128) u8 cached[]; // keys, then values: as many rows of 128 bytes as there are positions, in whole groups
    __shared__ float blends[ATTENTION_WARPS][64];
    __shared__ float bests[ATTENTION_WARPS], totals[ATTENTION_WARPS];
    const float NOTHING = -1e30f;
    u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, group = lane / 4, member = lane & 3;
    u32 seen = past + 1, room = min((seen + 15) / 16 * 16, POSITIONS), ahead = min(past, POSITIONS);
    u32 keys_at = (u32)__cvta_generic_to_shared(cached), values_at = keys_at + room * 128;
    keys += (size_t)blockIdx.x * capacity * 64;
    values += (size_t)blockIdx.x * capacity * 64;
    fetch_positions(keys_at, values_at, keys, values, 0, 0, ahead);
    await_earlier();
    admit_next();

    u32 query[4][2];
#pragma unroll
    for (int step = 0; step < 4; step++) {
        const u16* at = q + (size_t)blockIdx.x * 64 + step * 16 + member * 2;
        query[step][0] = load_word(at);
        query[step][1] = load_word(at + 8);
    }
    // Weights are powers of two of differences of scores.
    float factor = scale * 1.44269504f, best = NOTHING, total = 0.0f;
    float blend[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++) blend[i][0] = blend[i][1] = blend[i][2] = blend[i][3] = 0.0f;
    for (u32 first = 0; first < seen; first += POSITIONS) {
        u32 count = min(seen - first, POSITIONS);
        if (first > 0) __syncthreads();
        fetch_positions(keys_at, values_at, keys, values, first, first > 0 ? 0 : ahead, count);
        // A weight of zero removes a value, unless that is NaN.
        for (u32 i = count * 8 + threadIdx.x; i < (count + 15) / 16 * 128; i += blockDim.x)
            *(uint4*)(cached + room * 128 + i * 16) = make_uint4(0, 0, 0, 0);
        await_fetches();
        __syncthreads();

        float scores[TURNS * GROUPS][2], top = best;
#pragma unroll
        for (u32 turn = 0; turn < TURNS; turn++) {
            if (turn * GROUPS * ATTENTION_WARPS * 16 >= count) break;
#pragma unroll
            for (u32 g = turn * GROUPS; g < (turn + 1) * GROUPS; g++) {
                u32 row = (g * ATTENTION_WARPS + warp) * 16, held = min(row, room - 16);
                float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
                for (int step = 0; step < 4; step++) {
                    uint4 a = load_tiles(keys_at + place(held + (lane & 15), step * 2 + lane / 16));
                    multiply(sums, a.x, a.y, a.z, a.w, query[step][0], query[step][1]);
                }
                scores[g][0] = row + group < count ? sums[0] : NOTHING;
                scores[g][1] = row + group + 8 < count ? sums[2] : NOTHING;
                top = fmaxf(top, fmaxf(scores[g][0], scores[g][1]));
            }
        }
#pragma unroll
        for (int o = 4; o < 32; o *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
        float fade = exp2f((best - top) * factor);
        best = top;
        total *= fade;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            blend[i][0] *= fade;
            blend[i][2] *= fade;
        }
#pragma unroll
        for (u32 turn = 0; turn < TURNS; turn++) {
            if (turn * GROUPS * ATTENTION_WARPS * 16 >= count) break;
#pragma unroll
            for (u32 g = turn * GROUPS; g < (turn + 1) * GROUPS; g++) {
                u32 row = (g * ATTENTION_WARPS + warp) * 16, held = min(row, room - 16);
                float upper = row + group < count ? exp2f((scores[g][0] - best) * factor) : 0.0f;
                float lower = row + group + 8 < count ? exp2f((scores[g][1] - best) * factor) : 0.0f;
                total += upper + lower;
                // A lane has the weights of its group's positions and needs those of its member's.
                u32 pair = narrow_pair(upper, lower);
                u32 even = __shfl_sync(~0u, pair, member * 8), odd = __shfl_sync(~0u, pair, member * 8 + 4);
                u32 b0 = __byte_perm(even, odd, 0x5410), b1 = __byte_perm(even, odd, 0x7632);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    uint4 a = load_tiles_transposed(values_at + place(held + (lane & 7) + lane / 16 * 8, i * 2 + lane / 8 % 2));
                    multiply(blend[i], a.x, a.y, a.z, a.w, b0, b1);
                }
            }
        }
    }
#pragma unroll
    for (int o = 4; o < 32; o *= 2) total += __shfl_xor_sync(~0u, total, o);
    if (member == 0) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            blends[warp][i * 16 + group] = blend[i][0];
            blends[warp][i * 16 + group + 8] = blend[i][2];
        }
    }
    if (lane == 0) {
        bests[warp] = best;
        totals[warp] = total;
    }
    __syncthreads();
    if (warp == 0) {
        float top = NOTHING, sum = 0.0f, low = 0.0f, high = 0.0f;
#pragma unroll
        for (u32 w = 0; w < ATTENTION_WARPS; w++) top = fmaxf(top, bests[w]);
#pragma unroll
        for (u32 w = 0; w < ATTENTION_WARPS; w++) {
            float share = exp2f((bests[w] - top) * factor);
            sum += share * totals[w];
            low += share * blends[w][lane * 2];
            high += share * blends[w][lane * 2 + 1];
        }
        *(u32*)(out + (size_t)blockIdx.x * 64 + lane * 2) = narrow_pair(low / sum, high / sum);
    }
}

} // namespace decode
