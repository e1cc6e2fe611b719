/* A C program that uses libflashsmith as its header says: lists, finds, and is refused. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "flashsmith.h"

static void list_all(void) {
    for (size_t i = 0; i < flashsmith_count(); ++i) {
        printf("config %s\n", flashsmith_short_form(flashsmith_at(i)));
    }
    assert(flashsmith_at(flashsmith_count()) == NULL);
    assert(flashsmith_short_form(NULL) == NULL);
}

static void find(const char* short_form) {
    flashsmith_config config = NULL;
    const flashsmith_status status = flashsmith_find(short_form, &config);
    printf("find %d %s\n", (int)status,
           status == FLASHSMITH_OK ? flashsmith_short_form(config) : flashsmith_last_error());
    assert((status == FLASHSMITH_OK) == (config != NULL));
}

static void call(const char* what, const flashsmith_forward_args* args) {
    const flashsmith_status status = flashsmith_forward(flashsmith_at(0), args, NULL);
    printf("%s %d %s | %s\n", what, (int)status, flashsmith_status_string(status),
           status == FLASHSMITH_OK ? "" : flashsmith_last_error());
}

int main(int argc, char** argv) {
    assert(flashsmith_abi() == FLASHSMITH_ABI);
    list_all();
    for (int i = 1; i < argc; ++i) find(argv[i]);

    flashsmith_tensor tensor = {(void*)0x1000, 3 * 192 * 64, 3 * 64, 64};
    flashsmith_forward_args args = {.q = tensor, .k = tensor, .v = tensor, .o = tensor};
    args.batch = 1;
    args.heads = args.kv_heads = 3;
    args.q_len = args.k_len = 192;
    args.d_head = 64;
    flashsmith_forward_args wrong = args;
    wrong.kv_heads = 2;
    call("heads", &wrong);
    wrong = args;
    wrong.d_head = 72;
    call("d_head", &wrong);
    wrong = args;
    wrong.k_len = 0;
    call("k_len", &wrong);
    wrong = args;
    wrong.scale = -1.0;
    call("scale", &wrong);
    wrong = args;
    wrong.q.data = NULL;
    call("null", &wrong);
    wrong = args;
    wrong.v.seq_stride = 3 * 64 + 4;
    call("stride", &wrong);
    wrong = args;
    wrong.q_len = 0;
    call("empty", &wrong);
    call("none", NULL);
    return 0;
}
