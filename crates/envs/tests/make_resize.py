"""Prints the hashes of `equals_pillow` in src/resize.rs. Needs Pillow before version 13, which resizes some sizes in another order."""
from PIL import Image

M = (1 << 64) - 1


def random_bytes(seed, n):
    out = bytearray()
    for _ in range(n):
        seed = (seed + 0x9E3779B97F4A7C15) & M
        z = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & M
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M
        out.append((z ^ (z >> 31)) & 0xFF)
    return bytes(out)


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & M
    return h


SIZES = [
    ((210, 160), (64, 64)),
    ((32, 32), (64, 64)),
    ((50, 70), (64, 40)),
    ((210, 160), (16, 16)),
    ((210, 160), (32, 32)),
    ((210, 160), (84, 84)),
    ((210, 160), (96, 96)),
    ((210, 160), (128, 128)),
    ((210, 160), (256, 256)),
]

for (fh, fw), (th, tw) in SIZES:
    image = Image.frombytes("RGB", (fw, fh), random_bytes(fh * 1000 + fw, fh * fw * 3))
    print(f"0x{fnv(image.resize((tw, th), Image.BILINEAR).tobytes()):016x}")
