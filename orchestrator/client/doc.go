// Package client is a Go client of the HTTP API of tranche serve, version [APIVersion]. The tranche command uses it.
//
//	tranche, err := client.New(client.DefaultURL, client.WithToken(secret))
//	started, err := tranche.Start(ctx, client.RunSettings{Endpoint: "interest"}, file)
//	run, err := tranche.Wait(ctx, started.Run)
//
// Types and a method per operation are generated from docs/openapi.json: GetRun is get-run. Written by hand are
// streaming uploads and exports ([Client.Start], [Client.Add], [Client.FailedItems]), lists over all pages
// ([Client.AllRuns]), events that resume after a lost connection ([Client.WatchRun]), and waiting for a run
// ([Client.Wait]).
//
// Distinguish these errors: [ProblemError], an error answer; [UnreachableError], no connection; [NoResponseError], a
// connection without an answer; and [ErrNotModified]. Only streams of events are retried; with an [IdempotencyKey]
// the caller can retry changes.
//
// # Versions
//
// The package follows the API's version, not the program's. Within v1 the API only gains operations, parameters and
// members, so a client works with older and newer servers: a server rejects what it does not know by name, and a
// client ignores it. So string values are open types, and [Raw] returns the answer as received. A v2 would have its
// own path and package, client/v2.
//
// The package imports only the standard library. A [Client] is safe for concurrent use.
package client
