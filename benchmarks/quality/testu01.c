/* Reads 32-bit words (little-endian) from standard input and gives them to a battery of TestU01.

   testu01 NAME small|medium|big [reversed]

   Exit status: 0 all p-values lie in [1e-3, 1 - 1e-3], 1 one is outside [1e-10, 1 - 1e-10], a clear
   failure, 3 one is between, which chance also does: to be repeated on other words; 2 wrong arguments
   or too few words. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bbattery.h"
#include "swrite.h"
#include "unif01.h"

enum { COUNT = 1 << 16 };
static uint32_t words[COUNT];
static size_t used = COUNT;

static unsigned int next_word(void) {
    if (used == COUNT) {
        if (fread(words, sizeof words[0], COUNT, stdin) != COUNT) {
            fprintf(stderr, "testu01: the input has ended\n");
            exit(2);
        }
        used = 0;
    }
    return words[used++];
}

static unsigned int next_reversed(void) { /* TestU01 looks at the upper bits most */
    uint32_t w = next_word();
    w = (w >> 1 & 0x55555555u) | (w & 0x55555555u) << 1;
    w = (w >> 2 & 0x33333333u) | (w & 0x33333333u) << 2;
    w = (w >> 4 & 0x0F0F0F0Fu) | (w & 0x0F0F0F0Fu) << 4;
    w = (w >> 8 & 0x00FF00FFu) | (w & 0x00FF00FFu) << 8;
    return w >> 16 | w << 16;
}

int main(int argc, char **argv) {
    int reversed = argc == 4 && strcmp(argv[3], "reversed") == 0;
    if (argc < 3 || argc > 4 || (argc == 4 && !reversed)) {
        fprintf(stderr, "usage: testu01 NAME small|medium|big [reversed] < words\n");
        return 2;
    }
    swrite_Basic = FALSE; /* the summary alone */
    unif01_Gen *gen = unif01_CreateExternGenBits(argv[1], reversed ? next_reversed : next_word);
    if (strcmp(argv[2], "small") == 0)
        bbattery_SmallCrush(gen);
    else if (strcmp(argv[2], "medium") == 0)
        bbattery_Crush(gen);
    else if (strcmp(argv[2], "big") == 0)
        bbattery_BigCrush(gen);
    else {
        fprintf(stderr, "testu01: no battery named %s\n", argv[2]);
        return 2;
    }
    int status = 0;
    for (int i = 0; i < bbattery_NTests && status != 1; i++) {
        double p = bbattery_pVal[i];
        if (p < 1e-10 || p > 1 - 1e-10)
            status = 1;
        else if (p < 1e-3 || p > 1 - 1e-3)
            status = 3;
    }
    unif01_DeleteExternGenBits(gen);
    return status;
}
