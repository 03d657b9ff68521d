package archtest_test

import (
	"maps"
	"slices"
	"strings"
)

// rule says what a package may import. Paths of this module are written without its name; a path that ends in /...
// stands for a tree.
type rule struct {
	own    []string // packages of this module
	tests  []string // further ones that its tests may import
	others []string // modules of others; nil means any, an empty list means the standard library only
}

func rules() map[string]rule {
	servers := []string{"internal/testing/...", "internal/embedded", "migrations"}
	kit := append([]string{"endpoints/endpointstest"}, servers...)
	sdk := []string{"endpoints", "endpoints/wire", "endpoints/stream"}
	inside := []string{"endpoints/wire", "endpoints/stream", "internal/pull", "internal/backoff"}
	store := []string{"workqueue/...", "bitfield/...", "migrations", "internal/fault", "internal/backoff"}
	part := append([]string{"orchestrator/core", "endpoints/wire", "endpoints/stream"}, store...)
	// A package whose tests have whole nodes.
	nodes := append([]string{"orchestrator", "orchestrator/fetch", "gather/fetch", "endpoints"}, servers...)
	all := map[string]rule{
		"bitfield":        {others: []string{}},
		"bitfield/pgbits": {own: []string{"bitfield"}, tests: servers, others: []string{"github.com/jackc/pgx/v5"}},
		"bitfield/tracker": {
			own: []string{"bitfield", "bitfield/pgbits"}, tests: servers,
			others: []string{"github.com/jackc/pgx/v5", "github.com/google/uuid"},
		},
		// What people look at with psql is compared with what the store says.
		"migrations": {own: []string{"internal/backoff"}, tests: append([]string{"workqueue/..."}, servers...)},
		// A plan's steps name endpoints; what such a name may be, the protocol says.
		"gather": {
			own:   append([]string{"gather/template", "gather/strictyaml", "gather/itemschema", "endpoints/wire"}, store...),
			tests: servers,
		},
		"gather/template": {},
		// What items must look like: for plans, and for whoever reads items.
		"gather/itemschema": {},
		// YAML that people write, with the place of what is wrong in it.
		"gather/strictyaml": {own: []string{"internal/intake/row"}, tests: []string{"workqueue"}},
		// What fetches a chunk, beside endpoints: Go code of programs that embed a node may be such, so it knows no store.
		"gather/fetch": {own: []string{"endpoints/wire"}, tests: append([]string{"endpoints"}, servers...)},
		// Their settings come from the plan, and what they may reach from the operator's file.
		"gather/fetch/...": {
			own: []string{
				"gather", "gather/template", "gather/fetch", "endpoints/wire", "internal/connections", "workqueue",
				"internal/backoff",
			},
			tests: servers,
		},
		"internal/connections": {own: []string{"workqueue", "gather/strictyaml"}, tests: servers},
		// The SDK stands on what nodes and others who speak the protocol use, too: messages, and JetStream.
		"endpoints": {
			own: []string{
				"endpoints/wire", "endpoints/stream", "endpoints/internal/...", "bitfield",
				"internal/backoff", "internal/buildinfo",
			}, tests: append([]string{"internal/pull"}, servers...),
		},
		// What stands behind its door. Each may need those that stand above it here.
		"endpoints/internal/serve": {own: inside, tests: servers},
		"endpoints/internal/flow":  {own: append([]string{"endpoints/internal/serve"}, inside...), tests: servers},
		"endpoints/wire":           {own: []string{"bitfield", "internal/intake/row"}, tests: servers},
		"endpoints/stream": {
			own: []string{"endpoints/wire", "internal/pull", "internal/backoff"}, tests: servers,
		},
		// Where servers of this machine are found.
		// Which version this is.
		"internal/buildinfo": {others: []string{}},
		// Messages of a consumer, whatever they mean.
		"internal/pull": {own: []string{}, tests: servers},
		// What services may use beside the SDK. The SDK imports none of it.
		"endpoints/endpointstest": {own: append([]string{"internal/embedded"}, sdk...), tests: servers},
		"endpoints/pginbox":       {own: []string{"endpoints", "endpoints/wire"}, tests: kit},
		"endpoints/telemetry":     {own: []string{"endpoints", "endpoints/wire"}, tests: kit},
		// A client of the tracker service, and what goes to and fro.
		"endpoints/trackerclient": {own: []string{"bitfield"}, tests: servers},
		// A node: its life, leadership and periodic work. What it does is in packages beside it, which know no node.
		"orchestrator": {
			own: append([]string{
				"orchestrator/...", "gather", "gather/fetch", "endpoints/wire", "endpoints/stream", "internal/pull",
			}, store...),
			tests: append([]string{"endpoints"}, servers...),
		},
		"orchestrator/core": {own: append([]string{"endpoints/wire", "endpoints/stream", "gather/fetch"}, store...),
			tests: servers},
		"orchestrator/dispatch": {own: part, tests: nodes},
		"orchestrator/fetch": {own: append([]string{"orchestrator/dispatch", "gather/fetch"}, part...),
			tests: append([]string{"gather/fetch/httpfetch", "gather/fetch/sqlfetch", "internal/connections",
				"internal/metrics"}, nodes...)},
		"orchestrator/record": {own: append([]string{"internal/pull"}, part...), tests: nodes},
		"orchestrator/flush":  {own: append([]string{"gather/fetch"}, part...), tests: nodes},
		"orchestrator/streams": {own: append([]string{"internal/pull"}, part...),
			tests: append([]string{"internal/access/natsaccess"}, nodes...)},
		"orchestrator/sweep": {own: part, tests: nodes},
		// A node inside another program, with the API and the dashboard.
		"orchestrator/embed": {
			own: []string{"orchestrator", "orchestrator/client", "orchestrator/fetch", "orchestrator/schedule",
				"gather/fetch/...", "gather/fetch", "internal/access", "internal/api", "internal/connections", "internal/dashboard",
				"internal/buildinfo", "internal/ingest", "internal/metrics", "internal/trackers", "workqueue",
				"workqueue/collector", "workqueue/control", "workqueue/database", "workqueue/identity"},
			tests: append([]string{"endpoints"}, servers...),
		},
		// It fires what is due, and reads the items of those runs; how a run is started is behind an interface.
		"orchestrator/schedule": {
			own: append([]string{
				"orchestrator", "gather", "gather/strictyaml", "gather/fetch/httpfetch", "endpoints/wire", "internal/backoff",
			}, store...),
			tests: append([]string{"internal/connections"}, servers...),
		},
		// The client is for everybody's programs: it brings nothing along but the standard library.
		"orchestrator/client": {
			own: []string{"internal/backoff"}, others: []string{}, tests: append([]string{"internal/api/...",
				"orchestrator", "endpoints",
				"workqueue/..."}, servers...),
		},
		// It writes the description of the API, and the client that is generated from it.
		"tools/generate": {
			own:   []string{"internal/api/...", "gather", "workqueue", "workqueue/collector"},
			tests: append([]string{"orchestrator/client"}, servers...),
		},
		// It decides, and knows nothing of where what it is told comes from.
		"orchestrator/autotune": {own: []string{"workqueue"}, others: []string{}},
		// By what items follow each other: for plans, and for whoever keeps lines.
		"workqueue/order": {others: []string{"github.com/go-json-experiment/json"}},
		// It calculates, and knows nothing of where what it is told comes from.
		"workqueue/forecast": {others: []string{}},

		"internal/archtest": {others: []string{}},
		"internal/backoff":  {others: []string{}},
		"internal/fault":    {others: []string{}},
		// Rows of all formats; below it what a row is, and the reader of Parquet, which decodes pages under its own bounds.
		"internal/intake":     {own: []string{"gather/itemschema", "internal/intake/..."}, tests: servers},
		"internal/intake/row": {},
		"internal/intake/parquet": {own: []string{"internal/intake/row"},
			tests: append([]string{"internal/intake"}, servers...)},
		"internal/embedded": {own: []string{"internal/backoff"},
			tests: []string{"internal/testing/testenv"}},
		// What tests share, of the store, of nodes and of the API; it is linked by nothing else.
		"internal/testing/...": {own: []string{"bitfield/...", "endpoints/...", "gather/...", "internal/...", "migrations",
			"orchestrator/...", "workqueue/..."}},
		"internal/testing/testenv": {own: []string{"internal/embedded", "migrations"}},
		// The suite plays the node, and starts services as processes: it needs no store.
		"tools/conformance": {own: append([]string{"internal/embedded", "internal/backoff", "gather/itemschema"}, sdk...),
			tests: servers},
		// A node's spans: it implements an interface of the orchestrator's, which links no OpenTelemetry.
		"internal/tracing": {
			own:   append([]string{"orchestrator/core", "endpoints/wire", "endpoints/telemetry"}, store...),
			tests: append([]string{"orchestrator", "endpoints", "workqueue/..."}, servers...),
		},
		// What is measured of a node: it implements interfaces of the orchestrator's and the API's, which link no
		// Prometheus.
		"internal/metrics": {
			own: append([]string{"endpoints/wire", "orchestrator", "orchestrator/core", "internal/health",
				"internal/buildinfo"}, store...),
			tests: append([]string{"endpoints", "internal/api", "internal/tracing", "internal/access"}, servers...),
		},
		// It judges what the store and NATS say; the API and streams show it.
		"internal/health": {
			own:   append([]string{"endpoints/wire", "endpoints/stream"}, store...),
			tests: append([]string{"orchestrator", "endpoints"}, servers...),
		},
		// The tracker service: its transactions, what the API and NATS ask, and webhooks.
		"internal/trackers": {
			own: append([]string{
				"endpoints/trackerclient", "internal/ingest", "internal/connections", "gather/fetch/httpfetch",
			}, store...),
			tests: append([]string{
				"gather/fetch/httpfetch", "endpoints", "orchestrator", "internal/api", "internal/access/natsaccess",
			}, servers...),
		},
		// Who is told what a person must see to.
		"internal/alerts": {
			own: append([]string{
				"orchestrator", "internal/health", "gather/fetch/httpfetch", "internal/connections", "gather/strictyaml",
			}, store...),
			tests: servers,
		},
		// Where runs and the audit log go before they are deleted.
		"internal/archive": {own: store, tests: append([]string{"internal/api/runs"}, servers...)},
		// What collectors are given, over NATS and by the API.
		"internal/ingest": {
			own: append([]string{
				"gather", "gather/strictyaml", "gather/template", "gather/fetch", "gather/fetch/sqlfetch",
				"workqueue/order", "endpoints", "endpoints/wire", "internal/intake/row",
			}, store...),
			tests: append([]string{"internal/connections"}, servers...),
		},
		// Files for browsers, and nothing else: what they show they ask the API for.
		"internal/dashboard": {others: []string{}},
		// The dashboard in a browser, in front of a real server.
		"internal/dashboard/browsertest": {
			own: []string{},
			tests: append([]string{
				"internal/access", "internal/alerts", "internal/api", "internal/buildinfo", "internal/dashboard",
				"orchestrator", "endpoints", "endpoints/stream", "workqueue/...",
			}, servers...),
		},
		// What runs are followed with; its source is an interface, of which the store is one.
		"internal/live": {
			own:   []string{"workqueue", "workqueue/inspect", "bitfield"},
			tests: append([]string{"bitfield/...", "workqueue/..."}, servers...),
		},
		"internal/access": {own: []string{"workqueue", "workqueue/database", "workqueue/identity"}, tests: servers},
		// Who may say what on NATS, as data.
		"internal/access/natsaccess": {own: []string{"endpoints/wire"}, tests: append(sdk, servers...)},
		// Services to test against: what the nodes make of them is seen from outside.
		"tools/faultyservice": {
			own:   []string{"endpoints", "endpoints/wire", "internal/backoff"},
			tests: append([]string{"orchestrator", "endpoints/stream", "workqueue/..."}, servers...),
		},
		// Whole processes: the test binary is a node or a service itself.
		"internal/systest/...": {
			own: []string{},
			tests: append([]string{"orchestrator", "orchestrator/schedule", "gather/fetch", "internal/health",
				"tools/faultyservice", "internal/access/natsaccess"}, slices.Concat(sdk, servers, store)...),
		},
		// The demo uses the product from outside: its commands, the SDK, and what the examples have.
		"tools/demo": {
			own: []string{
				"endpoints", "examples/...", "tools/demokit", "internal/embedded",
			},
			tests: servers,
		},
		// What the demo and the cluster are told with.
		"tools/demokit": {own: []string{"endpoints/wire", "internal/backoff", "internal/embedded"}, tests: servers},
		// As the demo, from outside; its services are the SDK's.
		"tools/cluster": {
			own:   []string{"endpoints", "tools/demokit", "internal/embedded", "internal/backoff"},
			tests: servers,
		},

		// What a server waits for when it starts. Its wiring is cmd's.
		"internal/startup": {
			own: []string{"internal/api", "internal/cli", "internal/backoff", "endpoints/stream", "orchestrator/streams",
				"workqueue/database", "workqueue/session"},
			tests: append([]string{"endpoints"}, servers...),
		},
		"cmd/...": {
			own: append([]string{
				"internal/cli/...", "internal/startup", "internal/access/...", "orchestrator/client", "internal/api/...",
				"internal/embedded", "internal/dashboard", "internal/tracing", "internal/metrics",
				"internal/buildinfo", "internal/connections", "orchestrator", "orchestrator/fetch", "orchestrator/core",
				"orchestrator/streams", "gather", "gather/fetch/...", "internal/ingest", "internal/trackers", "endpoints",
				"endpoints/wire", "endpoints/stream", "orchestrator/schedule", "internal/alerts",
				"internal/health", "gather/strictyaml", "internal/archive",
			}, store...),
			tests: append([]string{"tools/conformance"}, servers...),
		},
		// Programs of users: services, and one that embeds a node.
		"examples/...": {
			own: []string{
				"examples/...", "endpoints/...", "bitfield", "bitfield/tracker", "gather/fetch", "orchestrator/client",
				"orchestrator/embed",
			},
			tests: servers,
		},
	}
	maps.Copy(all, rooms(servers))
	maps.Copy(all, commands(servers, store))
	maps.Copy(all, api(servers, store))
	return all
}

// commands are the rules of the command line: what all commands share, those about runs, and all others. They are
// clients of the API; only those that look after the system itself open a database.
func commands(servers, store []string) map[string]rule {
	const shared = "internal/cli"
	own := []string{"orchestrator/client", "internal/access", "gather", "gather/strictyaml", "gather/itemschema",
		"internal/intake/...", "internal/api/...", "workqueue/..."}
	return map[string]rule{
		shared:           {own: own, tests: servers},
		shared + "/runs": {own: append([]string{shared, "bitfield", "endpoints/wire"}, own...), tests: servers},
		shared + "/admin": {own: slices.Concat([]string{shared, "internal/access/natsaccess", "internal/alerts",
			"internal/buildinfo", "tools/conformance", "tools/demo", "internal/embedded",
			"bitfield", "endpoints/wire", "internal/ingest", "orchestrator/schedule"}, own, store), tests: servers},
	}
}

// api are the rules of the HTTP API: apicore, which knows no operation; the operations on runs, which need it;
// and the server, with all other operations.
func api(servers, store []string) map[string]rule {
	const root = "internal/api"
	own := append([]string{
		"internal/health", "internal/live", "orchestrator", "orchestrator/streams", "gather", "endpoints/wire",
		"endpoints/stream", "internal/access", "internal/buildinfo", "internal/intake/...", "internal/connections",
		"gather/strictyaml", "gather/itemschema",
		"internal/ingest", "internal/trackers", "endpoints/trackerclient",
		"orchestrator/schedule", "internal/alerts",
	}, store...)
	tests := append([]string{"gather/fetch/httpfetch", "endpoints", "internal/startup", root + "/..."}, servers...)
	all := map[string]rule{
		root:              {own: append([]string{root + "/..."}, own...), tests: tests},
		root + "/runs":    {own: append([]string{root + "/apicore"}, own...), tests: tests},
		root + "/apicore": {own: own, tests: tests},
	}
	return all
}

// rooms are the rules of the store. Its root is words that all rooms share. Each room is the tables, the statements and
// the types of one thing; what several need is in workqueue/internal. A room may need those that stand above it here.
func rooms(servers []string) map[string]rule {
	const root, internal = "workqueue", "workqueue/internal/"
	shared := []string{root, root + "/database", internal + "ledger", internal + "pg", internal + "plane",
		root + "/order", "bitfield/...", "internal/fault", "internal/backoff"}
	all := map[string]rule{
		root: {
			own: []string{"bitfield", root + "/order"}, tests: append([]string{root + "/...", "bitfield/..."}, servers...),
		},
		internal + "pg":     {own: []string{root}, tests: servers},
		internal + "ledger": {own: []string{root, internal + "pg"}, tests: servers},
		internal + "plane": {
			own: []string{root, internal + "pg", "bitfield/..."}, tests: servers,
		},
		root + "/database": {own: []string{root, internal + "pg", "internal/backoff"}, tests: servers},
	}
	for _, room := range []struct{ name, needs string }{
		{"session", ""}, {"identity", ""}, {"deadletter", ""}, {"doctor", ""},
		{"pace", "session"},
		{"dispatch", "pace"},
		{"settle", "pace session"},
		{"control", "forecast pace session settle"},
		{"start", "control pace session settle"},
		{"redo", "control session settle"},
		{"collector", "dispatch pace session"},
		{"schedule", "pace session start"},
		{"alert", "session"},
		// These only read.
		{"inspect", "control forecast redo start"},
		{"export", "redo session"},
		{"health", "control dispatch inspect pace schedule session settle start"},
		{"report", "inspect pace"},
		{"retention", "inspect session"},
		{"erasure", ""},
	} {
		r := rule{own: slices.Clone(shared), tests: append([]string{root + "/..."}, servers...)}
		for need := range strings.FieldsSeq(room.needs) {
			r.own = append(r.own, root+"/"+need)
		}
		all[root+"/"+room.name] = r
	}
	doctor := all[root+"/doctor"]
	doctor.own = append(doctor.own, "migrations") // compares the schema with what they have made
	all[root+"/doctor"] = doctor
	return all
}
