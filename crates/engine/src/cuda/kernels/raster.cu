// Frames token by token, row by row: what a token is told of those before it, and the draws.

// A thread per channel of a frame: x [frames, tokens, 3 * width] -> out [frames, tokens, width].
extern "C" __global__ void earlier(View out, View x, u32 tokens, u32 side, u32 width, u32 n) {
    EACH(i, n) {
        size_t frame = (size_t)(i / width) * tokens, c = i % width;
        float sum = 0.0f;
        for (u32 k = 0; k < tokens; k++) {
            size_t row = (frame + k) * 3;
            float v = sum;
            if (k % side) v += get(x, (row - 3 + 1) * width + c);
            if (k >= side) v += get(x, (row - 3 * side + 2) * width + c);
            put(out, (frame + k) * width + c, v);
            sum += get(x, row * width + c);
        }
    }
}

extern "C" __global__ void earlier_gradient(View dx, View dy, u32 tokens, u32 side, u32 width, u32 n, int add) {
    EACH(i, n) {
        size_t frame = (size_t)(i / width) * tokens, c = i % width;
        float sum = 0.0f;
        for (u32 k = tokens; k-- > 0;) {
            size_t row = (frame + k) * 3;
            put_or_add(dx, row * width + c, sum, add);
            put_or_add(dx, (row + 1) * width + c, (k + 1) % side && k + 1 < tokens ? get(dy, (frame + k + 1) * width + c) : 0.0f, add);
            put_or_add(dx, (row + 2) * width + c, k + side < tokens ? get(dy, (frame + k + side) * width + c) : 0.0f, add);
            sum += get(dy, (frame + k) * width + c);
        }
    }
}

// Widest sums over earlier tokens, and entries whose weights a block keeps in registers: two per thread.
#define WIDEST 64
#define KEPT 512

__device__ __forceinline__ void weights_of(float (&w)[2][WIDEST], View weight, u32 entry, u32 width, u32 entries) {
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
#pragma unroll
        for (u32 c = 0; c < WIDEST; c++) {
            u32 row = entry + i * 256;
            w[i][c] = row < entries && c < width ? get(weight, (size_t)row * width + c) : 0.0f;
        }
    }
}

// A token's own logits, and its noise, of a thread's two entries from `entry` on.
__device__ __forceinline__ void look(float (&score)[2], float (&noise)[2], View alone, size_t place, size_t token, u32 entry, u32 entries, Draw draw) {
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        u32 at = min(entry + i * 256, entries - 1);
        score[i] = get(alone, place * entries + at);
        noise[i] = -logf(-logf(open_unit(random_bits(draw, (u32)(token * entries + at)))));
    }
}

// Where token k of a frame stands if its tokens lie patch by patch.
__device__ __forceinline__ u32 place_of(u32 k, u32 side, u32 patch) {
    u32 y = k / side, x = k % side;
    return ((y / patch * (side / patch) + x / patch) * patch + y % patch) * patch + x % patch;
}

// A block of 256 threads per frame; thread c has channel c of the sums over earlier tokens. What does not depend on the tokens before the next one is
// fetched while those are still being drawn. Shared: what the tokens of the last row say to those below them, [side, WIDEST].
extern "C" __global__ void __launch_bounds__(256) draw_frame(int* out, View logits, View alone, View told, View table, View weight, u32 tokens, u32 side, u32 patch, u32 width, u32 entries, const u32* state, u32 site) {
    extern __shared__ float below[];
    __shared__ __align__(16) float active[WIDEST];
    __shared__ float bests[8];
    __shared__ u32 indices[8];
    const u32 thread = threadIdx.x;
    const size_t first = (size_t)blockIdx.x * tokens;
    const Draw draw = draw_of(state, site);
    const bool sums = thread < width;
    float w[2][WIDEST], score[2], noise[2], heard, sum = 0.0f, left = 0.0f;
    weights_of(w, weight, thread, width, entries);
    look(score, noise, alone, first, first, thread, entries, draw);
    heard = sums ? get(told, first * width + thread) : 0.0f;
    for (u32 k = 0; k < tokens; k++) {
        const u32 column = k % side;
        const size_t token = first + k, place = first + place_of(k, side, patch);
        if (thread < WIDEST) {
            float v = heard + sum;
            if (sums && column) v += left;
            if (sums && k >= side) v += below[column * WIDEST + thread];
            active[thread] = relu(v);
        }
        __syncthreads();
        float best = -__int_as_float(0x7f800000);
        u32 index = 0x7fffffff;
        for (u32 start = 0; start < entries; start += KEPT) {
            if (entries > KEPT) weights_of(w, weight, start + thread, width, entries);
            if (start > 0) look(score, noise, alone, place, token, start + thread, entries, draw);
#pragma unroll
            for (u32 c = 0; c < WIDEST; c += 4) {
                float4 x = *(const float4*)(active + c);
#pragma unroll
                for (u32 i = 0; i < 2; i++) score[i] += w[i][c] * x.x + w[i][c + 1] * x.y + w[i][c + 2] * x.z + w[i][c + 3] * x.w;
            }
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                u32 entry = start + i * 256 + thread;
                if (entry >= entries) continue;
                if (logits.p) put(logits, token * entries + entry, score[i]);
                take_larger(best, index, score[i] + noise[i], entry);
            }
        }
        if (k + 1 < tokens) {
            const size_t next = first + place_of(k + 1, side, patch);
            look(score, noise, alone, next, token + 1, thread, entries, draw);
            if (sums) heard = get(told, next * width + thread);
        }
        take_largest(best, index);
        if ((thread & 31) == 0) {
            bests[thread / 32] = best;
            indices[thread / 32] = index;
        }
        __syncthreads();
#pragma unroll
        for (u32 warp = 0; warp < 8; warp++) take_larger(best, index, bests[warp], indices[warp]);
        // Where no number was larger than another.
        if (index >= entries) index = 0;
        if (thread == 0) out[token] = (int)index;
        if (sums) {
            const size_t row = (size_t)index * 3 * width + thread;
            float all = get(table, row);
            left = get(table, row + width);
            below[column * WIDEST + thread] = get(table, row + 2 * width);
            sum += all;
        }
    }
}
