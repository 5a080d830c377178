/* Stores two blocks and loads them back, in C.
 *
 *   store_and_load_c "file:///tmp/kv?pool=64MiB&flash=256MiB"     or tcp://127.0.0.1:7070 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvdepot/kvdepot.h"

enum { LAYERS = 3, BLOCKS = 2, SLAB_BYTES = 16384 };

static void must(kvd_code code, const kvd_error* error) {
  if (code == KVD_OK) return;
  fprintf(stderr, "%s: %s\n", kvd_code_name(code), error->what);
  exit(1);
}

/* Waits for the end of an operation and gives its memory back. */
static kvd_completion finish(kvd_client* client, kvd_op op) {
  kvd_error error = {KVD_OK, 0, ""};
  kvd_completion done;
  must(kvd_wait(client, op, KVD_WHOLE_OP, 30000, &done, &error), &error);
  kvd_release(client, op);
  if (done.code != KVD_OK) {
    fprintf(stderr, "the operation ended with %s\n", kvd_code_name(done.code));
    exit(1);
  }
  return done;
}

int main(int argc, char** argv) {
  static const char fingerprint[] = "example-model, bf16, layout 1, C";
  static const uint16_t zero = 0;
  static const kvd_deadline deadline = {20000, 0};
  static unsigned char kv[LAYERS * BLOCKS * SLAB_BYTES];
  const char hashes[BLOCKS][9] = {"prefix-1", "prefix-2"};
  kvd_options options = KVD_OPTIONS_INIT;
  kvd_group group = {0, LAYERS, SLAB_BYTES, 2, 16, "LBHNC", KVD_HIT_ALL, 0};
  kvd_error error = {KVD_OK, 0, ""};
  kvd_keys keys = {hashes, sizeof hashes, 9, 0};
  kvd_client* client = NULL;
  kvd_op op = 0;
  uint64_t layer_offset[LAYERS];
  uint64_t block_offset[BLOCKS];
  uint32_t region = 0;
  uint32_t ns = 0;
  uint32_t prefix = 0;
  size_t i;
  kvd_placement place = {0, layer_offset, LAYERS, block_offset, BLOCKS, NULL, 0};

  if (argc != 2) {
    fprintf(stderr, "usage: %s DEPOT\n", argv[0]);
    return 2;
  }
  options.require_connection = 1;
  must(kvd_open(argv[1], &options, &client, &error), &error);
  must(kvd_open_namespace(client, "default", fingerprint, sizeof fingerprint, &group, 1, &ns, &error), &error);
  must(kvd_register(client, kv, sizeof kv, &region, &error), &error);
  place.region = region;
  for (i = 0; i < LAYERS; ++i) layer_offset[i] = i * BLOCKS * SLAB_BYTES;
  for (i = 0; i < BLOCKS; ++i) block_offset[i] = i * SLAB_BYTES;

  for (i = 0; i < sizeof kv; ++i) kv[i] = (unsigned char)(i * 7);
  must(kvd_multiput(client, ns, 0, 0, keys, &place, KVD_POOLED, 1, deadline, &op, &error), &error);
  finish(client, op);

  must(kvd_match(client, ns, &zero, 1, &zero, 1, keys, 0, 1, deadline, &op, &error), &error);
  prefix = finish(client, op).prefix_blocks;

  memset(kv, 0, sizeof kv);
  must(kvd_multiget(client, ns, 0, 0, 0, 0, keys, &place, 1, deadline, &op, &error), &error);
  finish(client, op);
  for (i = 0; i < sizeof kv; ++i) {
    if (kv[i] != (unsigned char)(i * 7)) {
      fprintf(stderr, "byte %lu differs\n", (unsigned long)i);
      return 1;
    }
  }
  printf("%u of %d blocks matched, all bytes as stored\n", (unsigned)prefix, BLOCKS);
  kvd_close(client);
  return prefix == BLOCKS ? 0 : 1;
}
