// Package bank is an example of four services of a bank, each with a database of its own, as plans meet them:
//
//   - accounts answers chunks of requests over JetStream, a whole chunk by one query;
//   - transactions does the same for requests that nobody persists, because asking again costs nothing;
//   - branches is a plain HTTP service that knows nothing of Tranche: one customer at a time, behind a token, and so
//     many a second, above which it says 429 and when to come back;
//   - mail posts what was composed, over JetStream: it must be asked once, and not get lost.
//
// An account that a service cannot answer for gets an error that says why; the others get their answers. Each service
// writes into a [Ledger] what it was asked before it answers, so that anybody can count who was asked for what.
// tranche demo makes the databases and runs the services. Everything here is safe for concurrent use.
package bank
