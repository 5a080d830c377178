/* The C API of kvdepot: what client.h and embed.h offer, for C and for languages that call C.
 *
 * Every function returns a kvd_code; KVD_OK is 0. When it is not KVD_OK, the last argument, which may be NULL, receives
 * what went wrong; its text is static and stays valid (of kvd_open(): until the same thread calls it again). No
 * function throws or keeps a pointer to its arguments, except kvd_register(), whose memory must stay until
 * kvd_unregister() or kvd_close(), and kvd_open() its callback. Everything may be called from any thread; only
 * kvd_open(), kvd_wait(), kvd_cancel(), kvd_release(), kvd_depot_stats() and kvd_close() can block, each bounded as
 * client.h says. A forked child gets KVD_INVALID.
 *
 * Structures are extended at their end only. Fill those that have an initialiser with it, so that members of later
 * versions have their defaults. */
#ifndef KVDEPOT_KVDEPOT_H_
#define KVDEPOT_KVDEPOT_H_

#include <stdint.h>

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Named by what the caller does next; see kvdepot/result.h. */
typedef enum kvd_code {
  KVD_OK = 0,
  KVD_INVALID = 1,
  KVD_NOT_FOUND = 2,
  KVD_NO_SPACE = 3,
  KVD_BUSY = 4,
  KVD_TIMEOUT = 5,
  KVD_UNAVAILABLE = 6,
  KVD_STALE = 7,
  KVD_CORRUPT = 8,
  KVD_IO = 9,
  KVD_CANCELLED = 10
} kvd_code;

typedef struct kvd_error {
  kvd_code code;
  int sys_errno;    /* 0 = none */
  const char* what; /* one line; see above */
} kvd_error;

typedef struct kvd_client kvd_client;
typedef struct kvd_view kvd_view;
typedef uint64_t kvd_op; /* 0 is never an operation */

#define KVD_WHOLE_OP 0xFFFFu /* kvd_completion.layer of an operation's last completion */

typedef struct kvd_options {
  uint32_t connect_timeout_ms; /* with require_connection */
  int require_connection;      /* 0: connect in the background */
  int attach_only;             /* file:// only: connect to the owner of the directory */
  uint32_t ops_max;            /* operations that are not released */
  uint32_t breaker_failures;   /* consecutive failures that open the breaker */
  uint32_t breaker_probe_ms;   /* an open breaker probes this often */
  const char* name;            /* shown in the depot's log */
  /* file:// only, may be NULL: a warning of this process's embedded depot; see OpenOptions in kvdepot/embed.h. */
  void (*on_warning)(void* user, const char* line);
  void* on_warning_user;
  int no_shared_memory;   /* 1: bytes come through the socket also where the depot would lend its memory */
  const char* token_file; /* the token that the depot asks for is in this file, of mode 0600; NULL = none */
  /* For tls:// addresses, PEM files: see ClientOptions in kvdepot/client.h. NULL = none. */
  const char* tls_ca;
  const char* tls_cert;
  const char* tls_key;
  const char* tls_server_name;
} kvd_options;
#define KVD_OPTIONS_INIT {1000, 0, 0, 256, 1, 1000, "kvdepot-c", NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL}

/* How a match treats the blocks of one group. */
typedef enum kvd_hit_rule { KVD_HIT_ALL = 0, KVD_HIT_TRAILING = 1, KVD_HIT_LAST = 2 } kvd_hit_rule;

/* Geometry of the records of one group; see kvdepot/types.h. */
typedef struct kvd_group {
  uint16_t group;
  uint16_t layers;
  uint32_t slab_bytes;
  uint16_t parts;
  uint32_t block_tokens;
  const char* order; /* canonical order of the bytes in a slab, e.g. "LBHNC" */
  kvd_hit_rule rule;
  uint16_t hit_blocks;
} kvd_group;

/* `bytes` holds keys of `key_bytes` each, back to back. native: 16-byte native keys, else foreign keys. */
typedef struct kvd_keys {
  const void* bytes;
  size_t bytes_len;
  uint16_t key_bytes;
  int native;
} kvd_keys;

/* Pieces inside a slab's place in memory; see kvdepot/types.h, Run. */
typedef struct kvd_run {
  uint64_t offset;
  uint64_t stride;
  uint32_t count;
  uint32_t length;
} kvd_run;

/* address(key i, layer l) = region + layer_offset[l - first layer] + block_offset[i] + offsets of the runs. */
typedef struct kvd_placement {
  uint32_t region;
  const uint64_t* layer_offset;
  size_t layer_count;
  const uint64_t* block_offset;
  size_t block_count;
  const kvd_run* runs; /* NULL: the slab is one piece */
  size_t run_count;
} kvd_placement;

/* Limits from submission on; 0 = none. */
typedef struct kvd_deadline {
  uint32_t total_ms;
  uint32_t progress_ms; /* without a byte on the connection; a get or put: or the depot's word (docs/client.md) */
} kvd_deadline;

typedef enum kvd_ack { KVD_POOLED = 0, KVD_WRITTEN = 1, KVD_SYNCED = 2 } kvd_ack;

typedef struct kvd_completion {
  kvd_op op;
  uint16_t layer; /* KVD_WHOLE_OP: the operation has ended */
  kvd_code code;  /* KVD_OK also when single keys failed */
  uint32_t keys;
  uint32_t failed_keys;
  const uint8_t* failed;                /* bit i of byte i / 8 = key i failed; valid until kvd_release() */
  uint32_t prefix_blocks, flash_blocks; /* match */
  uint64_t lease;                       /* match */
  uint32_t removed;                     /* remove */
  uint64_t took_ns;                     /* KVD_WHOLE_OP only: from submission to the end, whenever it is looked at */
  const char* why;      /* why `code` or `failed_code` is not KVD_OK, in the depot's words where it refused; valid until
                           kvd_release() */
  kvd_code failed_code; /* put: why the first key that failed was not kept; see Completion in kvdepot/client.h */
} kvd_completion;

/* The code's name in lower case, e.g. "not_found". */
const char* kvd_code_name(kvd_code code);

/* Opens "tcp://HOST:PORT", "tls://HOST:PORT", "unix:///PATH" or "file:///DIR?pool=1GiB&flash=10GiB", an embedded depot
   with the sizes that it has by default (flash=0: memory only; see kvdepot/embed.h). `options` may be NULL. */
kvd_code kvd_open(const char* depot, const kvd_options* options, kvd_client** client, kvd_error* error);
/* Ends everything in flight; afterwards no byte lands in any region. NULL is ignored. */
void kvd_close(kvd_client* client);

kvd_code kvd_register(kvd_client* client, void* base, size_t bytes, uint32_t* region, kvd_error* error);
kvd_code kvd_unregister(kvd_client* client, uint32_t region, kvd_error* error);
kvd_code kvd_open_namespace(kvd_client* client, const char* tenant, const void* fingerprint, size_t fingerprint_bytes,
                            const kvd_group* groups, size_t group_count, uint32_t* ns, kvd_error* error);
/* Once for each kvd_open_namespace(). Records stay; operations under way end as they would. */
kvd_code kvd_close_namespace(kvd_client* client, uint32_t ns, kvd_error* error);

/* Submissions never block. */
kvd_code kvd_match(kvd_client* client, uint32_t ns, const uint16_t* shards, size_t shard_count, const uint16_t* groups,
                   size_t group_count, kvd_keys keys, uint32_t lease_ms, int promote, kvd_deadline deadline, kvd_op* op,
                   kvd_error* error);
/* layer_count 0 = all from layer_first on. */
kvd_code kvd_multiget(kvd_client* client, uint32_t ns, uint16_t shard, uint16_t group, uint16_t layer_first,
                      uint16_t layer_count, kvd_keys keys, const kvd_placement* dest, int stop_at_first_failure,
                      kvd_deadline deadline, kvd_op* op, kvd_error* error);
/* As kvd_multiget(), but what it finds is read where it lies: kvd_take_view() when the operation has ended with KVD_OK.
 * hold_ms: 1 to 600,000; see BorrowRequest in kvdepot/client.h. */
kvd_code kvd_borrow(kvd_client* client, uint32_t ns, uint16_t shard, uint16_t group, uint16_t layer_first,
                    uint16_t layer_count, kvd_keys keys, int verify, uint32_t hold_ms, int stop_at_first_failure,
                    kvd_deadline deadline, kvd_op* op, kvd_error* error);
/* Once for each borrow. It lasts until kvd_view_close(), also beyond kvd_release() and kvd_close(). KVD_BUSY: not yet.
 */
kvd_code kvd_take_view(kvd_client* client, kvd_op op, kvd_view** view, kvd_error* error);
/* Where the slab of key `key` (from 0, as asked for) in layer `layer` lies, read-only, until kvd_view_close(); its size
 * in `bytes`, which may be NULL. NULL: the key has failed, or was not asked for. */
const void* kvd_view_slab(const kvd_view* view, size_t key, uint16_t layer, size_t* bytes);
/* 1: that slab is what was put. For borrows with verify = 0: reads it once, on the calling thread. 0: it is damaged, or
 * there is none. */
int kvd_view_verify(const kvd_view* view, size_t key, uint16_t layer);
/* 1: some of it lies in the depot's memory now; 0: it is a copy. */
int kvd_view_borrowed(const kvd_view* view);
/* Gives it back. NULL is ignored. */
void kvd_view_close(kvd_view* view);
/* whole = 0: layers are released one by one with kvd_put_layer(). */
kvd_code kvd_multiput(kvd_client* client, uint32_t ns, uint16_t shard, uint16_t group, kvd_keys keys,
                      const kvd_placement* src, kvd_ack ack, int whole, kvd_deadline deadline, kvd_op* op,
                      kvd_error* error);
kvd_code kvd_put_layer(kvd_client* client, kvd_op op, uint16_t layer, kvd_error* error);
kvd_code kvd_remove(kvd_client* client, uint32_t ns, const uint16_t* shards, size_t shard_count, const uint16_t* groups,
                    size_t group_count, kvd_keys keys, kvd_deadline deadline, kvd_op* op, kvd_error* error);
kvd_code kvd_unpin(kvd_client* client, uint64_t lease, kvd_error* error);
/* Opens the breaker, for a caller who knows from another client that the depot is away: from the return on submissions
 * end with KVD_UNAVAILABLE, until a probe is answered. */
kvd_code kvd_open_breaker(kvd_client* client, kvd_error* error);
/* For a caller who knows from another client that the depot is there: connects now, not when the back-off's time has
 * come. Blocks for at most `timeout_ms`, then KVD_UNAVAILABLE. */
kvd_code kvd_reconnect(kvd_client* client, uint32_t timeout_ms, kvd_error* error);

/* When it returns, no byte can land in the operation's destination and none is read from its source. */
kvd_code kvd_cancel(kvd_client* client, kvd_op op, kvd_error* error);
/* KVD_TIMEOUT: not yet, the operation goes on. The completion's own `code` says how the operation went. */
kvd_code kvd_wait(kvd_client* client, kvd_op op, uint16_t layer, uint32_t timeout_ms, kvd_completion* completion,
                  kvd_error* error);
/* Takes up to `max` completions; returns how many. */
size_t kvd_poll(kvd_client* client, kvd_completion* completions, size_t max);
/* Readable while completions wait for kvd_poll(). */
int kvd_event_fd(kvd_client* client);
/* Every operation must be released; one that still runs is cancelled first. */
void kvd_release(kvd_client* client, kvd_op op);

/* The depot's own statistics as JSON text, in `text` of `text_bytes` with a terminating zero. KVD_NO_SPACE: longer. */
kvd_code kvd_depot_stats(kvd_client* client, uint32_t timeout_ms, char* text, size_t text_bytes, kvd_error* error);

#ifdef __cplusplus
}
#endif

#endif /* KVDEPOT_KVDEPOT_H_ */
