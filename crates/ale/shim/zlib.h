// Stands in for zlib, of which ALE uses two things: it reads ROM files through it, and writes screens as PNG files.
// Here a "file" is the ROM in memory that the shim was given, and no screen is ever written.
#pragma once

struct RomReader;
using gzFile = RomReader*;

gzFile gzopen(const char* name, const char* mode);
int gzread(gzFile file, void* bytes, unsigned count);
int gzclose(gzFile file);

using uLongf = unsigned long;
constexpr int Z_OK = 0;

inline unsigned long crc32(unsigned long, const unsigned char*, unsigned) { return 0; }
inline int compress(unsigned char*, uLongf*, const unsigned char*, unsigned long) { return -1; }
