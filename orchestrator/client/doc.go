// Package client speaks the HTTP API of tranche serve, version [APIVersion], for programs in Go. The project's own
// command line uses nothing else.
//
//	tranche, err := client.New(client.DefaultURL, client.WithToken(secret))
//	started, err := tranche.Start(ctx, client.RunSettings{Endpoint: "interest"}, file)
//	run, err := tranche.Wait(ctx, started.Run)
//
// Types and a method for each operation are generated from the API's OpenAPI document, docs/openapi.json: GetRun is
// get-run, and so on. By hand are only the things that a generator does not know: uploads and exports that flow
// ([Client.Start], [Client.Add], [Client.FailedItems]), lists to their end ([Client.AllRuns]), events that resume where
// a connection broke off ([Client.WatchRun]), and waiting for a run ([Client.Wait]).
//
// Errors to tell apart are [ProblemError], an answer that says no; [UnreachableError], no one there; [NoResponseError],
// someone there who does not answer; and [ErrNotModified]. Nothing but a stream of events is retried: with an
// [IdempotencyKey] the caller can.
//
// # Versions
//
// The package goes with the API's version, not with the program's. Within v1 the API only gains operations, parameters
// and members, so a client works with servers that are older or newer than it: what a server does not know it refuses
// by name, what a client does not know it leaves out. That is why values of texts are open types, and why an answer can
// be had as it was sent, with [Raw]. A v2 of the API would be served beside it under its own path, and get a package of
// its own, client/v2.
//
// The package imports nothing but the standard library. A [Client] keeps no state but its connections and is safe for
// concurrent use.
package client
