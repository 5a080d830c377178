#include "cmd/program.h"

#include <array>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cmd/bench_net.h"
#include "cmd/bench_store.h"
#include "cmd/complaint.h"
#include "cmd/credentials_file.h"
#include "cmd/inspect.h"
#include "cmd/plan.h"
#include "cmd/serve.h"
#include "cmd/sim.h"
#include "cmd/top.h"

namespace kvd::cmd {
namespace {

constexpr const char* kProgramFooter =
    "Examples:\n"
    "  kvdepot serve --dir /data/kv --pool 8GiB --flash 200GiB\n"
    "  kvdepot top\n"
    "  kvdepot inspect /data/kv\n"
    "  kvdepot bench store --dir /mnt/nvme0\n"
    "  kvdepot plan --model llama-3-70b --gpu h100:2 --prompt 2200 --output 170 --reuse 0.9\n"
    "  kvdepot sim run examples/sim/depot.toml\n"
    "Each of them has a --help of its own.";

constexpr const char* kServeFooter =
    "Sizes take B, KB, MB, GB, TB (powers of 1000) and KiB, MiB, GiB, TiB (powers of 1024); times us, ms, s, m, h.\n"
    "Without --credentials only loopback addresses and unix sockets can be listened on, and with --tls-client-ca\n"
    "tls:// addresses. SIGHUP reads these files again.\n\n"
    "Examples:\n"
    "  kvdepot serve --dir /data/kv --pool 8GiB --flash 200GiB\n"
    "  kvdepot serve --dir /mnt/nvme0/kv --flash 1TB --device /mnt/nvme1/kv --device /mnt/nvme2/kv=2TB\n"
    "  kvdepot serve --dir /data/kv --listen tcp://127.0.0.1:7070 --listen unix:///run/kvdepot.sock --http off\n"
    "  kvdepot serve --flash 0 --pool 4GiB          # memory only\n"
    "  kvdepot serve --config /etc/kvdepot.toml     # the same names as keys: pool = \"8GiB\"";

// The flags of `serve` as they were typed; what was not typed is not there.
struct ServeFlags {
  std::map<std::string, std::string> single;
  std::vector<std::string> dir;  // more than one is refused, with a hint
  std::vector<std::string> device;
  std::vector<std::string> listen;
  std::vector<std::string> resp;
  std::string config;
  bool insecure = false;
  bool forget_missing = false;
  bool json = false;
};

void add_serve(CLI::App& serve, ServeFlags& flags) {
  const auto add = [&](const char* name, const char* type, const std::string& help) {
    serve.add_option(std::string("--") + name, flags.single[name], help)->type_name(type)->take_last();
  };
  const auto add_list = [&](const char* name, std::vector<std::string>& list, const char* type, const char* help) {
    serve.add_option(name, list, help)->type_name(type)->allow_extra_args(false);
  };
  add_list("--dir", flags.dir, "DIR", "Directory of the flash log; created with mode 0700");
  serve.get_option("--dir")->option_text("DIR");  // without the dots of a list
  add("pool", "SIZE", "DRAM tier, at least 64MiB [1GiB]");
  add("flash", "SIZE", "NVMe tier; 0 = memory only [10GiB; a store that is there keeps its size]");
  add_list("--device", flags.device, "DIR[=SIZE]",
           "A drive more, with a log of its own; repeatable; SIZE of a new one [as --flash]");
  serve.add_flag("--forget-missing", flags.forget_missing,
                 "For this start: give up devices of the store that are not there, and what they hold");
  add_list("--listen", flags.listen, "ADDRESS",
           "tcp://, tls://HOST:PORT or unix:///PATH; repeatable; port 0: any [tcp://127.0.0.1:7070]");
  add_list("--resp", flags.resp, "ADDRESS",
           "Where Redis clients are served, as tcp://127.0.0.1:6379; repeatable [nowhere]");
  add("resp-ack", "LEVEL", "What a SET waits for: pooled (in memory), written (survives a kill), synced [pooled]");
  add("http", "HOST:PORT", "Metrics and health over HTTP, or off [127.0.0.1:7071]");
  serve.add_option("--config", flags.config, "TOML file with the same settings; flags win")
      ->type_name("FILE")
      ->take_last();
  add("segment", "SIZE", "Segment of a new flash log, 16MiB to 256MiB, a power of two [auto: 1/32 of the log]");
  add("eviction", "lru|fifo", "Segment given up for new records: the one used, or written, longest ago [lru]");
  add("scrub", "SIZE", "Bytes of the log read per second to find damage early; 0 = off [16MiB]");
  add("dwpd", "N", "Drive writes a day: write no more than 0.8 of N times the flash size a day; 0 = unbounded [0]");
  add("demote-after", "TIME", "Longest time that a record is in memory only [30s]");
  add("shared-memory", "on|off", "Let clients of this host and user read the pool instead of sending them bytes [on]");
  add("put-arena", "SIZE", "Memory through which a client of this host and user puts; 0 = it sends bytes [16MiB]");
  add("put-arenas", "SIZE", "All of that memory; clients beyond it send bytes [1GiB]");
  add("get-window", "SIZE", "The same for what a client gets that may not read the pool; 0 = it is sent bytes [32MiB]");
  add("get-windows", "SIZE", "All of that memory; clients beyond it are sent bytes [1GiB]");
  add("spin", "TIME", "How long the depot looks for more behind a lookup before it sleeps; 0 = not [50us]");
  add("cores", "N", "Threads that send bodies of records, 1 to 64: the depot's one, and N - 1 for that alone [1]");
  add("connections-max", "N", "Client connections; beyond it one that has not said HELLO goes, or none comes [1024]");
  add("shape-read", "SIZE", "Slow reads down to this many bytes per second, for benchmarks; 0 = off [0]");
  add("verify", "on|off", "Verify what is read from flash; off only in tests that prove that it matters [on]");
  serve.get_option("--verify")->group("");  // not in the help
  add("credentials", "FILE", "Who may come in, as whom; everybody else is refused: docs/security.md");
  add("tls-cert", "FILE", "Certificate of tls:// addresses, PEM, with its chain; SIGHUP reads all tls files again");
  add("tls-key", "FILE", "Its private key, mode 0600");
  add("tls-client-ca", "FILE", "Clients on tls:// addresses have to show a certificate of these authorities");
  add("tls-crl", "FILE", "Revocation list for certificates of clients");
  serve.add_flag("--insecure", flags.insecure, "Without credentials: listen also where other machines come from");
  add("log-level", "LEVEL", "debug, info, warn or error, to stderr [info]");
  serve.add_flag("--json", flags.json, "Print what is ready as one JSON object");
  serve.footer(kServeFooter);
}

int run_serve(const CLI::App& app, const ServeFlags& flags) {
  Settings settings;
  if (!flags.config.empty()) {
    auto config = read_config(flags.config);
    if (!config) return complain(config.error());
    settings = std::move(*config);
  }
  for (const auto& [name, value] : flags.single) {
    if (app.count("--" + name) > 0) settings[name] = {value};
  }
  if (flags.insecure) settings["insecure"] = {"on"};
  if (flags.forget_missing) settings["forget-missing"] = {"on"};
  if (!flags.dir.empty()) settings["dir"] = flags.dir;
  if (!flags.device.empty()) settings["device"] = flags.device;
  if (!flags.listen.empty()) settings["listen"] = flags.listen;
  if (!flags.resp.empty()) settings["resp"] = flags.resp;
  const auto options = make_options(settings);
  if (!options) return complain(options.error());
  return serve(*options, flags.json);
}

Verb add_bench(CLI::App& app) {
  CLI::App* const bench = app.add_subcommand("bench", "Measure what a store, or a depot, gives you");
  bench->require_subcommand(1);
  const std::array verbs = {add_bench_store(*bench), add_bench_net(*bench)};
  bench->footer("Examples:\n  kvdepot bench store --dir /mnt/nvme0\n  kvdepot bench net tcp://127.0.0.1:7070");
  return {bench, [verbs] {
            for (const Verb& verb : verbs)
              if (verb.app->parsed()) return verb.run();
            return EXIT_FAILURE;
          }};
}

}  // namespace

int run_program(int argc, char** argv) {
  if (argc < 2) return complain("say what to do, as in kvdepot serve --dir /data/kv: see kvdepot --help");
  CLI::App app("kvdepot keeps the KV cache of LLM engines, in memory and on NVMe, and gives it back.", "kvdepot");
  app.set_version_flag("--version", "kvdepot " KVD_VERSION);
  app.require_subcommand(1);
  ServeFlags flags;
  CLI::App* const serve = app.add_subcommand("serve", "Run a depot until SIGTERM");
  add_serve(*serve, flags);
  PlanVerb plan(app);
  const auto run_sim = add_sim(app);
  const Verb verbs[] = {add_inspect(app), add_verify(app), add_top(app), add_bench(app), add_token(app)};
  app.footer(kProgramFooter);  // last: verbs that are added later would inherit it
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(error);
    std::string verb;
    for (const CLI::App* chosen : app.get_subcommands()) verb = " " + chosen->get_name();
    return complain(fmt::format("{}: see kvdepot{} --help", error.what(), verb));
  }
  for (const auto& verb : verbs)
    if (verb.app->parsed()) return verb.run();
  if (plan.chosen()) return plan.run();
  return serve->parsed() ? run_serve(*serve, flags) : run_sim();
}

}  // namespace kvd::cmd
