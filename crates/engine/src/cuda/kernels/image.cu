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
    if (channels % 4 == 0) EACH(j, n / 4) {
        u32 i = 4 * j, c = i % channels, ox = i / channels % width, oy = i / channels / width % height, b = i / channels / width / height;
        put4_or_add(out, i, get4(x, ((b * x_height + oy) * x_width + ox) * channels + c), add);
    }
    else EACH(i, n) {
        size_t c = i % channels, ox = i / channels % width, oy = i / channels / width % height, b = i / channels / width / height;
        put_or_add(out, i, get(x, ((b * x_height + oy) * x_width + ox) * channels + c), add);
    }
}

// The weights [I, 3, 3, O] of the convolution that turns the gradient of a result into that of the input, from those [O, 3, 3, I] of the convolution
// that made the result.
extern "C" __global__ void turn_weights(u16* out, const u16* weight, u32 outputs, u32 inputs, u32 n) {
    EACH(i, n) {
        u32 o = i % outputs, tap = i / outputs % 9, c = i / outputs / 9;
        out[i] = weight[(o * 9 + 8 - tap) * inputs + c];
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
