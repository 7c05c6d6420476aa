#if defined(__x86_64__) || defined(_M_X64)
#include "lanes_avx512.h"

#define TILES tiles_avx512
#include "tiles.h"
#endif
